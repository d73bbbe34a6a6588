#define _GNU_SOURCE
#include "hook.h"
#include "command_line.h"
#include "compiled.h"
#include "message.h"
#include "python.h"
#include "trigger.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATE_LIMIT (1 << 20) /* bytes of the OCI state; annotations are in it */

/* The second and third are what engines and old bundles call: NVIDIA's hook under its two names. */
int is_hook(const char *name)
{
	return strncmp(name, "gpushim-hook", 12) == 0 || strcmp(name, "nvidia-container-runtime-hook") == 0 ||
	       strcmp(name, "nvidia-container-toolkit") == 0;
}

/*
 * Nothing of the environment counts: some engines hand a hook the image's. Settings come by argument, and go to what
 * reads them under the names that the shim's have.
 */
static void replace_environment(const char *config, const char *state)
{
	if (clearenv() != 0 || setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1) < 0 ||
	    (config && setenv("GPUSHIM_CONFIG", config, 1) < 0) || (state && setenv("GPUSHIM_STATE", state, 1) < 0))
		die("GS0707: %s", strerror(errno));
}

/* The value of the option name, `--name V`, `-name V` or with `=`, in the words of argv; NULL where it is not. */
static const char *option(const char *name, int argc, char **argv)
{
	size_t n = strlen(name);
	const char *value = NULL;

	for (int i = 1; i < argc; i++) {
		const char *body = argv[i] + (argv[i][0] == '-') + (argv[i][0] == '-' && argv[i][1] == '-');

		if (body == argv[i] || strncmp(body, name, n) != 0)
			continue;
		if (body[n] == '=')
			value = body + n + 1;
		else if (!body[n] && i + 1 < argc)
			value = argv[++i];
	}
	return value;
}

static int is_among(const char *word, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], word) == 0)
			return 1;
	return 0;
}

/* Standard input to its end into a file that takes its place; the text, NULL where it is too long or no pipe at all. */
static const char *keep_state(void)
{
	static char text[STATE_LIMIT + 1];
	int fd = memfd_create("state", MFD_CLOEXEC);
	size_t size = 0;
	ssize_t n = 1;

	while (fd >= 0 && size < STATE_LIMIT && n != 0) {
		n = read(STDIN_FILENO, text + size, STATE_LIMIT - size);
		if (n < 0 && errno != EINTR)
			break;
		size += n > 0 ? (size_t) n : 0;
	}
	if (fd < 0 || write(fd, text, size) != (ssize_t) size || lseek(fd, 0, SEEK_SET) < 0 ||
	    dup2(fd, STDIN_FILENO) < 0)
		die("GS0708: standard input: %s", strerror(errno));
	close(fd);
	return n == 0 && !memchr(text, '\0', size) ? text : NULL;
}

/* Whether state says that the working directory is the bundle. */
static int names_cwd(const char *state)
{
	static const char *const keys[] = {"\"bundle\":\"", "\"bundle\": \"", NULL};
	char cwd[PATH_MAX];

	if (!getcwd(cwd, sizeof(cwd)))
		return 0;
	for (const char *const *key = keys; *key; key++) {
		const char *at = strstr(state, *key);
		size_t n = strlen(cwd);

		/* Twice would be an annotation's doing. */
		if (at && strstr(at + 1, *key))
			return 0;
		at = at ? at + strlen(*key) : NULL;
		if (at && strncmp(at, cwd, n) == 0 && at[n] == '"')
			return 1;
	}
	return 0;
}

/*
 * hooks.d cannot match what a container's environment says, so that a hook is started for every container. Most ask
 * for nothing: runc and crun start a createRuntime hook in the bundle, and the triggers are looked for as in a create.
 */
static int asks_for_nothing(void)
{
	const char *state = keep_state();

	return state && names_cwd(state) && read_settings() == FRESH && !asks_hook();
}

void run_hook(int argc, char **argv)
{
	const char *config = option("config", argc, argv), *state = option("state", argc, argv);
	const char *none[] = {NULL};
	static char log[PATH_MAX];

	call.log = option("log", argc, argv);
	if (!call.log) {
		snprintf(log, sizeof(log), "%s/hook.log", state ? state : "/run/gpushim");
		call.log = log;
	}
	replace_environment(config, state);
	if (is_among("create-runtime", argc, argv) || is_among("prestart", argc, argv)) {
		if (asks_for_nothing())
			exit(0);
	}
	/* createContainer hooks start in the root of the container: nothing there is ours. */
	if (chdir("/") < 0)
		die("GS0709: /: %s", strerror(errno));
	start_python(HOOKS, none, argc, argv);
}
