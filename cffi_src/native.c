#define _GNU_SOURCE
#include "native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
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

/* ---- the capability tree ---- */

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
	int count, room;
};

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

	if (!dir)
		return;
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
	if (!dir)
		return;
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
	return list.count;
}

/* ---- files of a driver that may be sick: read in children that may be lost ---- */

/* What a child sends; below PIPE_BUF, so that frames of several children never mix. */
struct frame {
	int index, error, size;
	char data[GS_FILE_SIZE];
};

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* SIGKILL to ourselves after ms: nobody need know our pid, and it cannot be caught. In D state it waits for its turn.
 */
static void die_after(int ms)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec when = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L}};
	timer_t timer;

	if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0 || timer_settime(timer, 0, &when, NULL) < 0)
		_exit(1);
}

static void close_from(int first)
{
	/* close_range(2) is 5.9, openat2 is 5.6 and the rest of this file works on older kernels still. */
	if (syscall(SYS_close_range, (unsigned) first, ~0U, 0U) == 0)
		return;
	for (long fd = first, end = sysconf(_SC_OPEN_MAX); fd < end && fd < 65536; fd++)
		close((int) fd);
}

/* Become a process that holds nothing of the caller's but the pipe, as descriptor 3. */
static void detach(int pipe_end)
{
	int null = open("/dev/null", O_RDWR);

	if (dup2(pipe_end, 3) < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		_exit(1);
	close_from(4);
	setsid();
	if (chdir("/") < 0) /* a lost child must not keep the bundle's file system busy */
		_exit(1);
}

static void send_file(const char *path, int index)
{
	struct frame frame = {.index = index};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, frame.data, sizeof(frame.data));

	frame.error = n < 0 ? errno : 0;
	frame.size = n < 0 ? 0 : (int) n;
	if (fd >= 0)
		close(fd);
	if (write(3, &frame, offsetof(struct frame, data) + (size_t) frame.size) < 0)
		_exit(1);
}

/* A grandchild for the files first to last: init reaps it, so that the runtime we become never meets it. */
static int start_reader(const char *const *path, int first, int last, int pipe_end, int ms)
{
	pid_t child = fork();

	if (child < 0)
		return -errno;
	if (child > 0) {
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		return 0;
	}
	if (fork() != 0)
		_exit(0);
	die_after(ms);
	detach(pipe_end);
	for (int i = first; i <= last; i++)
		send_file(path[i], i);
	_exit(0);
}

/* Take frames until all files are in, every reader is gone, or it is end. The number still missing, or -errno. */
static int collect(int pipe_end, struct gs_file *out, int missing, int count, long end)
{
	while (missing > 0) {
		struct pollfd ready = {.fd = pipe_end, .events = POLLIN};
		long left = end - now_ms();
		struct frame frame;
		ssize_t n;

		if (left <= 0)
			break;
		if (poll(&ready, 1, (int) left) <= 0)
			continue;
		n = read(pipe_end, &frame, offsetof(struct frame, data));
		if (n == 0)
			break;
		if (n != offsetof(struct frame, data) || frame.index < 0 || frame.index >= count || frame.size < 0 ||
		    frame.size > GS_FILE_SIZE)
			return -EPROTO;
		if (frame.size && read(pipe_end, frame.data, (size_t) frame.size) != frame.size)
			return -EPROTO;
		if (out[frame.index].error != ETIMEDOUT)
			continue; /* both readers of a slow file came through */
		out[frame.index].error = frame.error;
		out[frame.index].size = frame.size;
		memcpy(out[frame.index].data, frame.data, (size_t) frame.size);
		missing--;
	}
	return missing;
}

/*
 * The starts of count files, whose reading may block for ever. One child reads them in turn; what it has not
 * delivered after patience_ms gets a child each, and all of them until deadline_ms, both counted from now.
 * The number of files that did not come, or -errno.
 */
int gs_read_files(const char *paths, int count, int patience_ms, int deadline_ms, struct gs_file *out)
{
	const char *path[256];
	long start = now_ms();
	int ends[2], missing = count;

	if (count < 0 || count > (int) (sizeof(path) / sizeof(*path)))
		return -E2BIG;
	for (int i = 0; i < count; i++, paths += strlen(paths) + 1) {
		path[i] = paths;
		out[i].error = ETIMEDOUT;
		out[i].size = 0;
	}
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	missing = start_reader(path, 0, count - 1, ends[1], deadline_ms);
	if (missing == 0)
		missing = collect(ends[0], out, count, count, start + patience_ms);
	if (missing > 0 && deadline_ms > patience_ms) {
		for (int i = 0; i < count; i++)
			if (out[i].error == ETIMEDOUT)
				start_reader(path, i, i, ends[1], deadline_ms - patience_ms);
		close(ends[1]);
		ends[1] = -1;
		missing = collect(ends[0], out, missing, count, start + deadline_ms);
	}
	if (ends[1] >= 0)
		close(ends[1]);
	close(ends[0]);
	return missing;
}
