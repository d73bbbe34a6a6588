#define _GNU_SOURCE
#include "low_level.h"
#include "compiled.h"
#include "message.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIRECTORIES "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static char low_level[PATH_MAX], handler_key[256], tried[1024];
static struct stat self_stat;

/* Whether path is a program and not this one. */
static int runs(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || access(path, X_OK) < 0)
		return 0;
	if (st.st_dev == self_stat.st_dev && st.st_ino == self_stat.st_ino)
		return 0;
	return snprintf(low_level, sizeof(low_level), "%s", path) < (int) sizeof(low_level);
}

/* name in the directories of list; what is not absolute is left out, since the cwd is a bundle. */
static int runs_in(const char *list, const char *name)
{
	for (const char *at = list; at && *at;) {
		const char *end = strchrnul(at, ':');
		char path[PATH_MAX];
		int n = snprintf(path, sizeof(path), "%.*s/%s", (int) (end - at), at, name);

		if (*at == '/' && n < (int) sizeof(path) && runs(path))
			return 1;
		at = *end ? end + 1 : end;
	}
	return 0;
}

static int try_candidate(const char *name)
{
	size_t n = strlen(tried);

	snprintf(tried + n, sizeof(tried) - n, "%s%s", n ? ", " : "", name);
	if (strchr(name, '/'))
		return *name == '/' && runs(name);
	return runs_in(getenv("PATH"), name) || runs_in(DIRECTORIES, name);
}

static int of_handler(const char *key, const char *value)
{
	return strcmp(key, handler_key) == 0 && try_candidate(value);
}

static int of_all(const char *key, const char *value)
{
	return strcmp(key, "candidate") == 0 && try_candidate(value);
}

static int any_handler_record(const char *key, const char *value)
{
	(void) value;
	return strcmp(key, handler_key) == 0;
}

static int any_candidate_record(const char *key, const char *value)
{
	(void) value;
	return strcmp(key, "candidate") == 0;
}

const char *find_runtime(void)
{
	int found;

	tried[0] = '\0';
	if (each_record(any_handler_record))
		found = each_record(of_handler);
	else if (each_record(any_candidate_record))
		found = each_record(of_all);
	else
		found = try_candidate("runc") || try_candidate("crun");
	if (!found)
		die("GS0701: no low-level runtime: none of %s is a program other than this one; looked in PATH and in "
		    "%s\n"
		    "hint: install runc or crun, or name one by nvidia-container-runtime.runtimes in config.toml",
		    tried, DIRECTORIES);
	return low_level;
}

void become_runtime(char **argv)
{
	argv[0] = (char *) find_runtime();
	execv(low_level, argv);
	die("GS0702: %s: %s", low_level, strerror(errno));
}

void know_self(const struct stat *program, const char *handler)
{
	self_stat = *program;
	snprintf(handler_key, sizeof(handler_key), "candidate:%s", handler);
}
