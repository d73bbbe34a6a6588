#define _GNU_SOURCE
#include "command_line.h"

#include <string.h>

/* Options with a value and without one, of runc and of crun, before the command and behind a create, run or restore. */
static const char *const global_values[] = {"cgroup-manager", "criu", "log",	  "log-format",
					    "log-level",      "root", "rootless", NULL};
static const char *const global_flags[] = {"debug", "help", "h", "systemd-cgroup", "usage", "version", "v", NULL};
static const char *const command_values[] = {
    "b",	"bundle",	"config",	"console-socket",    "empty-ns",
    "f",	"image-path",	"lsm-profile",	"lsm-mount-context", "manage-cgroups-mode",
    "pid-file", "pidfd-socket", "preserve-fds", "work-path",	     NULL};
static const char *const command_flags[] = {
    "auto-dedup", "d",		"detach",	  "ext-unix-sk", "file-locks",	 "h",	      "help",
    "keep",	  "lazy-pages", "no-new-keyring", "no-pivot",	 "no-subreaper", "shell-job", "tcp-established",
    "usage",	  NULL};
static const char *const help_flags[] = {"h", "help", "usage", NULL};

struct call call = {.bundle = "."};

static int listed(const char *const *names, const char *name)
{
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return 1;
	return 0;
}

static void take_option(const char *name, const char *value)
{
	if (strcmp(name, "log") == 0 && !call.command)
		call.log = value;
	else if (strcmp(name, "log-format") == 0 && !call.command)
		call.log_format = value;
	else if ((strcmp(name, "bundle") == 0 || strcmp(name, "b") == 0) && call.command) {
		call.bundle = value;
		call.odd |= !*value; /* the working directory to runc, an error to crun */
	} else if ((strcmp(name, "config") == 0 || strcmp(name, "f") == 0) && call.command)
		call.odd = 1; /* `config.json` is in the bundle to crun, in the working directory to runc */
}

/* One option; how many words it takes, its own included. next: the word behind it, or NULL. */
static int parse_option(const char *word, const char *next)
{
	const char *body = word + (word[1] == '-' ? 2 : 1);
	const char *equals = strchr(body, '=');
	size_t length = equals ? (size_t) (equals - body) : strlen(body);
	int one_dash = body == word + 1;
	char name[64];

	if (length >= sizeof(name)) { /* longer than any in the tables */
		call.odd = 1;
		call.lost |= !call.command;
		return 1;
	}
	memcpy(name, body, length);
	name[length] = '\0';
	/* `-b=V` and `-bundle V` are --bundle V to runc, and to crun the directories `=V` and `undle`. */
	if (one_dash && call.command && (length > 1 || equals))
		call.odd = 1;
	if (listed(call.command ? command_values : global_values, name)) {
		if (!equals && !next) {
			call.odd = 1;
			return 1;
		}
		take_option(name, equals ? equals + 1 : next);
		return equals ? 1 : 2;
	}
	if (!listed(call.command ? command_flags : global_flags, name)) {
		call.odd = 1; /* `--bund V` of crun, or an option of a runtime newer than this table */
		call.lost |= !call.command;
	}
	if (!call.command && (strcmp(name, "version") == 0 || (one_dash && strcmp(name, "v") == 0)))
		call.version = 1;
	/* Behind an option that is not in the tables it may be the value of that. */
	if (call.command && !equals && !call.odd && listed(help_flags, name))
		call.help = 1;
	return 1;
}

void parse(int argc, char **argv)
{
	for (int i = 1; i < argc;) {
		if (strcmp(argv[i], "--") == 0) {
			if (call.command || i + 1 == argc)
				return;
			/* It ends the options before the command only: those of the command come behind. */
			call.command = argv[i + 1];
			i += 2;
			continue;
		}
		if (argv[i][0] == '-' && argv[i][1]) {
			i += parse_option(argv[i], argv[i + 1]);
			continue;
		}
		if (!call.command)
			call.command = argv[i];
		i++;
	}
}

static int makes_container(void)
{
	return call.command && (strcmp(call.command, "create") == 0 || strcmp(call.command, "run") == 0 ||
				strcmp(call.command, "restore") == 0);
}

/* Where the command is not certain, any of the words may be it. */
int may_make_container(int argc, char **argv)
{
	static const char *const makers[] = {"create", "run", "restore", NULL};

	if (makes_container())
		return !call.help || call.lost;
	for (int i = 1; call.lost && i < argc; i++)
		if (listed(makers, argv[i]))
			return 1;
	return 0;
}
