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
#include "hook.h"
#include "low_level.h"
#include "message.h"
#include "python.h"
#include "trigger.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char self[PATH_MAX];

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

__attribute__((noreturn)) static void become_python(const char *handler, int argc, char **argv)
{
	char ignored[16];
	const char *first[] = {"shim", handler, find_runtime(), ignored, NULL};

	snprintf(ignored, sizeof(ignored), "%d", ignored_signals());
	start_python(SHIM, first, argc, argv);
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
	know_python(self);
	if (is_hook(handler))
		run_hook(argc, argv);
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
