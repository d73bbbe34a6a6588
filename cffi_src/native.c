#define _GNU_SOURCE
#include "native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* paths: count strings, each with its NUL, one after the other. */
void gs_stat_many(const char *paths, int count, struct gs_stat *out)
{
	for (int i = 0; i < count; i++, paths += strlen(paths) + 1) {
		struct stat st;

		memset(&out[i], 0, sizeof(out[i]));
		if (lstat(paths, &st) < 0) {
			out[i].error = errno;
			continue;
		}
		out[i].mode = (int) st.st_mode;
		out[i].major = (int) major(st.st_rdev);
		out[i].minor = (int) minor(st.st_rdev);
		out[i].uid = (int) st.st_uid;
		out[i].gid = (int) st.st_gid;
	}
}

/* openat2(2) that treats root as /, whatever links the path meets; Linux 5.6. */
int gs_open_in_root(int root, const char *path, int flags, int mode)
{
	struct open_how how = {
	    .flags = (uint64_t) flags | O_CLOEXEC,
	    .mode = flags & O_CREAT ? (uint64_t) mode : 0,
	    .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, root, path, &how, sizeof(how));

	return fd < 0 ? -errno : (int) fd;
}

/* "7" of "gi7" with prefix "gi"; -1 for any other name. */
static int number_after(const char *prefix, const char *name)
{
	size_t n = strlen(prefix);
	char *end;
	long value;

	if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9')
		return -1;
	value = strtol(name + n, &end, 10);
	return *end || value > 0xfffff ? -1 : (int) value;
}

/* The decimal after "field:" at the start of a line; -1 when there is none. */
static int field(const char *text, const char *name)
{
	size_t n = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		char *end;
		long value;

		line += *line == '\n';
		if (strncmp(line, name, n) != 0 || line[n] != ':')
			continue;
		value = strtol(line + n + 1, &end, 10);
		/* strtol skips line ends too: a field without a value must not take the next line's. */
		if (end == line + n + 1 || memchr(line, '\n', (size_t) (end - line)) || (*end && *end != '\n'))
			return -1;
		return value < 0 || value > 0xfffff ? -1 : (int) value;
	}
	return -1;
}

static void read_access(int dir, const char *path, struct gs_capability *out)
{
	char text[256];
	/* A real one never blocks; what stands in its place on an odd node must not either. */
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n;

	out->minor = out->mode = -1;
	if (fd < 0) {
		out->error = errno;
		return;
	}
	n = read(fd, text, sizeof(text) - 1);
	out->error = n < 0 ? errno : 0;
	close(fd);
	if (n < 0)
		return;
	text[n] = '\0';
	out->minor = field(text, "DeviceFileMinor");
	out->mode = field(text, "DeviceFileMode");
	if (out->minor < 0 || out->mode < 0 || out->mode > 07777)
		out->error = EINVAL;
}

static DIR *open_dir(int dir, const char *path)
{
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *opened = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !opened)
		close(fd);
	return opened;
}

/* A growing list in the caller's array: what does not fit is counted, not written. */
struct list {
	struct gs_capability *out;
	int count, room, error;
};

/* A directory of the tree that cannot be opened: one that is not there is no error, and any other is the walk's. */
static void not_opened(struct list *list)
{
	if (errno != ENOENT && errno != ENOTDIR && errno != ENODEV && !list->error)
		list->error = errno;
}

static void append(struct list *list, int dir, const char *path, int gpu, int gi, int ci)
{
	struct gs_capability one = {.gpu = gpu, .gi = gi, .ci = ci};

	read_access(dir, path, &one);
	if (one.error == ENOENT || one.error == ENODEV)
		return; /* destroyed while we walk: it is not there */
	if (list->count < list->room)
		list->out[list->count] = one;
	list->count++;
}

static void walk_instance(struct list *list, int mig, const char *name, int gpu, int gi)
{
	DIR *dir = open_dir(mig, name);
	struct dirent *entry;

	if (!dir) {
		not_opened(list);
		return;
	}
	append(list, dirfd(dir), "access", gpu, gi, -1);
	while ((entry = readdir(dir))) {
		int ci = number_after("ci", entry->d_name);
		char path[sizeof(entry->d_name) + sizeof("/access")];

		if (ci < 0)
			continue;
		stpcpy(stpcpy(path, entry->d_name), "/access");
		append(list, dirfd(dir), path, gpu, gi, ci);
	}
	closedir(dir);
}

static void walk_gpu(struct list *list, int top, const char *name, int gpu)
{
	char path[256 + sizeof("/mig")];
	struct dirent *entry;
	DIR *dir;

	stpcpy(stpcpy(path, name), "/mig");
	dir = open_dir(top, path);
	if (!dir) {
		not_opened(list);
		return;
	}
	while ((entry = readdir(dir))) {
		int gi = number_after("gi", entry->d_name);

		if (gi >= 0)
			walk_instance(list, dirfd(dir), entry->d_name, gpu, gi);
	}
	closedir(dir);
}

/* Every capability below directory: how many there are, of which the first count are in out, in no order. */
int gs_capabilities(const char *directory, struct gs_capability *out, int count)
{
	struct list list = {.out = out, .room = count};
	DIR *dir = open_dir(AT_FDCWD, directory);
	struct dirent *entry;

	if (!dir)
		return -errno;
	append(&list, dirfd(dir), "mig/config", -1, 0, -1);
	append(&list, dirfd(dir), "mig/monitor", -1, 1, -1);
	while ((entry = readdir(dir))) {
		int gpu = number_after("gpu", entry->d_name);

		if (gpu >= 0)
			walk_gpu(&list, dirfd(dir), entry->d_name, gpu);
	}
	closedir(dir);
	return list.error ? -list.error : list.count;
}
