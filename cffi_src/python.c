#define _GNU_SOURCE
#include "python.h"
#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EX_CONFIG 78 /* sysexits.h */

static const char *beside;
static char python[PATH_MAX], boot[PATH_MAX];

/* self: this program's own path, which outlives the call. */
void know_python(const char *self)
{
	beside = self;
}

static int find_python(const char *package)
{
	static const char *const sites[] = {"site-packages", "dist-packages", NULL};
	const char *slash = strrchr(beside, '/');
	int directory = slash ? (int) (slash - beside) : 0;

	if (snprintf(python, sizeof(python), "%.*s/" PYTHON, directory, beside) >= (int) sizeof(python))
		return -1;
	for (const char *const *site = sites; *site; site++)
		if (snprintf(boot, sizeof(boot), "%.*s/../lib/" PYTHON "/%s/%s/_boot.py", directory, beside, *site,
			     package) < (int) sizeof(boot) &&
		    access(boot, R_OK) == 0)
			return access(python, X_OK);
	return -1;
}

/* Have Python compile the settings; whether it works at all. */
int compile_settings(void)
{
	struct sigaction standard = {.sa_handler = SIG_DFL}, was;
	int status, ended;
	pid_t child;

	if (find_python(SHIM) < 0)
		return 0;
	/* Where an engine ignores SIGCHLD the kernel would keep no status for us; the runtime gets back what was. */
	if (sigaction(SIGCHLD, &standard, &was) < 0)
		return 0;
	child = fork();
	if (child < 0) {
		sigaction(SIGCHLD, &was, NULL);
		return 0;
	}
	if (child == 0) {
		int null = open("/dev/null", O_RDWR);

		/* What it has to say is told by the create that needs the settings. */
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execl(python, python, "-I", "-S", boot, "compile", (char *) NULL);
		_exit(127);
	}
	do
		ended = waitpid(child, &status, 0);
	while (ended < 0 && errno == EINTR);
	sigaction(SIGCHLD, &was, NULL);
	return ended > 0 && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EX_CONFIG);
}

void no_python(const char *why)
{
	die("GS0703: %s: %s, so that a container which asks for a GPU cannot be prepared\n"
	    "hint: install gpushim anew: its interpreter stands beside " PYTHON " in the same directory",
	    python[0] ? python : PYTHON, why);
}

/* Become Python: the boot file of package with the words of first, then those of argv behind its own name. */
void start_python(const char *package, const char *const *first, int argc, char **argv)
{
	int n = 0, extra = 0;
	char **words;

	while (first[extra])
		extra++;
	words = calloc((size_t) (argc + extra) + 5, sizeof(*words));
	if (!words || find_python(package) < 0)
		no_python("does not start");
	words[n++] = python;
	words[n++] = (char *) "-I";
	words[n++] = (char *) "-S";
	words[n++] = boot;
	for (int i = 0; i < extra; i++)
		words[n++] = (char *) first[i];
	memcpy(words + n, argv + 1, (size_t) argc * sizeof(*words)); /* the NULL behind the last too */
	execv(python, words);
	no_python(strerror(errno));
}
