/*
 * gpushim-runtime: what an engine starts. It hands a command line to the low-level runtime at once, unless that makes
 * a container which may ask for a GPU; then Python edits the bundle first. It may err towards Python only.
 *
 * Nothing here needs more than the kernel: a broken Python, library or settings file must not break a node.
 * gpushim/settings_file.py writes the compiled settings, gpushim/argv.py has the same tables of options.
 */
#define _GNU_SOURCE
#include "command_line.h"
#include "compiled.h"
#include "low_level.h"
#include "message.h"
#include "trigger.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EX_CONFIG 78 /* sysexits.h */

static char self[PATH_MAX], python[PATH_MAX], boot[PATH_MAX];

static int find_python(void)
{
	static const char *const sites[] = {"site-packages", "dist-packages", NULL};
	char *slash = strrchr(self, '/');
	int directory = slash ? (int) (slash - self) : 0;

	if (snprintf(python, sizeof(python), "%.*s/" PYTHON, directory, self) >= (int) sizeof(python))
		return -1;
	for (const char *const *site = sites; *site; site++)
		if (snprintf(boot, sizeof(boot), "%.*s/../lib/" PYTHON "/%s/gpushim/_boot.py", directory, self, *site) <
			(int) sizeof(boot) &&
		    access(boot, R_OK) == 0)
			return access(python, X_OK);
	return -1;
}

/* Have Python compile the settings; whether it works at all. */
static int compile_settings(void)
{
	struct sigaction standard = {.sa_handler = SIG_DFL}, was;
	int status, ended;
	pid_t child;

	if (find_python() < 0)
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

/* SIGPIPE and SIGXFSZ, which Python ignores: whether they were ignored already, for Python to put back. */
static int ignored_signals(void)
{
	static const int numbers[] = {SIGPIPE, SIGXFSZ};
	struct sigaction action;
	int mask = 0;

	for (int i = 0; i < 2; i++)
		if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			mask |= 1 << i;
	return mask;
}

__attribute__((noreturn)) static void no_python(const char *why)
{
	die("GS0703: %s: %s, so that a container which asks for a GPU cannot be prepared\n"
	    "hint: install gpushim anew: its interpreter stands beside " PYTHON " in the same directory",
	    python[0] ? python : PYTHON, why);
}

__attribute__((noreturn)) static void become_python(const char *handler, int argc, char **argv)
{
	char ignored[16];
	char **words = calloc((size_t) argc + 9, sizeof(*words));
	int n = 0;

	if (!words || find_python() < 0)
		no_python("does not start");
	snprintf(ignored, sizeof(ignored), "%d", ignored_signals());
	words[n++] = python;
	words[n++] = (char *) "-I";
	words[n++] = (char *) "-S";
	words[n++] = boot;
	words[n++] = (char *) "shim";
	words[n++] = (char *) handler;
	words[n++] = (char *) find_runtime();
	words[n++] = ignored;
	memcpy(words + n, argv + 1, (size_t) argc * sizeof(*words)); /* the NULL behind the last too */
	execv(python, words);
	no_python(strerror(errno));
}

/* Engines may hand a hook the image's environment : what steers the loader must not reach Python. */
static void drop_loader_variables(void)
{
	for (char **entry = environ; *entry;) {
		const char *equals = strchr(*entry, '=');
		char name[256];

		if (equals && (size_t) (equals - *entry) < sizeof(name) &&
		    (strncmp(*entry, "LD_", 3) == 0 || strncmp(*entry, "GCONV_PATH=", 11) == 0 ||
		     strncmp(*entry, "GLIBC_TUNABLES=", 15) == 0)) {
			memcpy(name, *entry, (size_t) (equals - *entry));
			name[equals - *entry] = '\0';
			unsetenv(name);
			continue; /* the next entry stands here now */
		}
		entry++;
	}
}

int main(int argc, char **argv)
{
	const char *handler = argc > 0 && argv[0] ? argv[0] : "gpushim-runtime";
	enum freshness fresh;
	struct stat program;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (argc < 1)
		die("GS0704: started without a name");
	if (n < 0 || stat("/proc/self/exe", &program) < 0)
		die("GS0705: /proc/self/exe: %s", strerror(errno));
	handler = strrchr(handler, '/') ? strrchr(handler, '/') + 1 : handler;
	if (strncmp(handler, "gpushim-hook", 12) == 0) {
		drop_loader_variables();
		die("GS0706: gpushim-hook has no command in this version");
	}
	know_self(&program, handler);
	parse(argc, argv);
	fresh = read_settings();
	if (call.version) {
		printf("gpushim-runtime version " VERSION "\n");
		fflush(stdout);
		become_runtime(argv);
	}
	if (!may_make_container(argc, argv))
		become_runtime(argv);
	if (fresh != FRESH) {
		int works = compile_settings();

		fresh = read_settings();
		if (!works) {
			if (asks(fresh != NONE))
				no_python("does not start");
			become_runtime(argv);
		}
		if (fresh != FRESH) /* it can say why, and lets pass what asks for nothing */
			become_python(handler, argc, argv);
	}
	if (asks(1))
		become_python(handler, argc, argv);
	become_runtime(argv);
}
