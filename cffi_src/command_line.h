/* The command line of runc and crun, as far as it tells whether a container is made, and from which bundle. */
#pragma once

struct call {
	const char *command, *bundle, *log, *log_format;
	int version; /* --version before any command */
	int help;    /* --help behind it: the runtime tells of the command and does nothing */
	int odd;     /* something that runc and crun read differently, or that is not in the tables */
	int lost;    /* an unknown option before the command: its value may have been taken for the command */
};

extern struct call call;

void parse(int argc, char **argv);
int may_make_container(int argc, char **argv);
