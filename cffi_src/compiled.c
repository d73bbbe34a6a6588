#define _GNU_SOURCE
#include "compiled.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ETC_CONFIG "/etc/gpushim/config.toml"
#define TOOLKIT_CONFIG "/etc/nvidia-container-runtime/config.toml"

static char settings[65536]; /* NUL-terminated records, `key=value` */
static size_t settings_size;

/* Whether the file just asked for is not there: one that may not be looked at counts, and is an error to be told. */
static int absent(void)
{
	return errno == ENOENT || errno == ENOTDIR;
}

/* Which config.toml counts, and whether the environment names it; as settings.select does. */
static const char *select_config(int *named)
{
	static const char *const variables[] = {"GPUSHIM_CONFIG", "NVIDIA_CTK_CONFIG_FILE_PATH", NULL};
	struct stat st;

	*named = 1;
	for (const char *const *v = variables; *v; v++) {
		const char *value = getenv(*v);

		if (value && *value)
			return value;
	}
	*named = 0;
	if (stat(ETC_CONFIG, &st) == 0 || !absent())
		return ETC_CONFIG;
	return stat(TOOLKIT_CONFIG, &st) == 0 || !absent() ? TOOLKIT_CONFIG : "";
}

/* The value of the record at *at, which moves behind it; NULL when it has another key or the settings end. */
static const char *record(const char **at, const char *key)
{
	size_t n = strlen(key);
	const char *here = *at;

	if (here >= settings + settings_size || strncmp(here, key, n) != 0 || here[n] != '=')
		return NULL;
	*at = here + strlen(here) + 1;
	return here + n + 1;
}

static int owned_and_private(const struct stat *st)
{
	return st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/*
 * How many of the n bytes read are whole records, 0 where they are not to be used. A file may be longer than there is
 * room only by its last record, the JSON text, which is for Python; one that ends within a record was cut.
 */
static size_t whole_records(size_t n)
{
	const char *end = memrchr(settings, '\0', n);
	size_t whole = end ? (size_t) (end + 1 - settings) : 0;

	if (n < sizeof(settings))
		return whole == n ? n : 0;
	return n - whole >= 5 && memcmp(settings + whole, "json=", 5) == 0 ? whole : 0;
}

static int read_file(const char *directory, const char *name)
{
	int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	ssize_t n = -1;
	int fd;

	if (dir < 0)
		return -1;
	fd = fstat(dir, &st) == 0 && owned_and_private(&st)
		 ? openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
		 : -1;
	close(dir);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && owned_and_private(&st))
		n = read(fd, settings, sizeof(settings));
	close(fd);
	settings_size = n < 0 ? 0 : whole_records((size_t) n);
	return settings_size ? 0 : -1;
}

/*
 * Whether what was read is of config, and still what that file says. What an older or newer version compiled is stale:
 * between an upgrade and the next create its candidates still name the runtime whose containers are running.
 */
static enum freshness judge_settings(const char *config)
{
	const char *at = settings, *value;
	char identity[128] = "";
	const char *version = record(&at, "gpushim-settings");
	struct stat st;

	if (!version || !(value = record(&at, "config")) || strcmp(value, config) != 0 ||
	    !(value = record(&at, "identity"))) {
		settings_size = 0;
		return NONE;
	}
	if (*config && stat(config, &st) == 0)
		snprintf(identity, sizeof(identity), "%llu %llu %llu %llu", (unsigned long long) st.st_dev,
			 (unsigned long long) st.st_ino, (unsigned long long) st.st_size,
			 (unsigned long long) st.st_mtim.tv_sec * 1000000000ULL +
			     (unsigned long long) st.st_mtim.tv_nsec);
	return strcmp(version, VERSION) == 0 && strcmp(value, identity) == 0 ? FRESH : STALE;
}

enum freshness read_settings(void)
{
	const char *state = getenv("GPUSHIM_STATE"), *run = getenv("XDG_RUNTIME_DIR"), *config;
	char name[64] = "settings", directory[PATH_MAX];
	int named;

	config = select_config(&named);
	if (named) {
		uint64_t hash =
		    0xcbf29ce484222325; /* FNV-1a: two engines with two files do not share one compiled form */

		for (const char *p = config; *p; p++)
			hash = (hash ^ (unsigned char) *p) * 0x100000001b3;
		snprintf(name, sizeof(name), "settings-%016llx", (unsigned long long) hash);
	}
	settings_size = 0;
	if (state && *state)
		return read_file(state, name) == 0 ? judge_settings(config) : NONE;
	if (read_file("/var/lib/gpushim", name) == 0)
		return judge_settings(config);
	if (!run || !*run || snprintf(directory, sizeof(directory), "%s/gpushim", run) >= (int) sizeof(directory))
		return NONE;
	return read_file(directory, name) == 0 ? judge_settings(config) : NONE;
}

/* Each record from `candidate=` on: calls use(key, value) until it returns nonzero. */
int each_record(int (*use)(const char *key, const char *value))
{
	const char *end = settings + settings_size;
	int found = 0;

	for (const char *at = settings; at < end && !found; at += strlen(at) + 1) {
		char key[256];
		const char *equals = strchr(at, '=');

		if (!equals || (size_t) (equals - at) >= sizeof(key))
			continue;
		memcpy(key, at, (size_t) (equals - at));
		key[equals - at] = '\0';
		found = use(key, equals + 1);
	}
	return found;
}
