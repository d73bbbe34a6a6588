/* Files of a driver that may be sick: read in children that may be lost. */
#define _GNU_SOURCE
#include "lost.h"
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* What a child sends; below PIPE_BUF, so that frames of several children never mix. */
struct frame {
	int index, error, size;
	char data[GS_FILE_SIZE];
};

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

static int start_reader(const char *const *path, int first, int last, int pipe_end, int ms)
{
	int started = start_lost_child(pipe_end, ms);

	if (started <= 0)
		return started;
	for (int i = first; i <= last; i++)
		send_file(path[i], i);
	_exit(0);
}

/*
 * Take frames until all files are in or it is end. The number still missing, or -errno: -EAGAIN when every reader was
 * gone before its time, which says nothing about the files. One that hangs holds the pipe.
 */
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
		if (n == 0) {
			if (now_ms() < end)
				return -EAGAIN;
			break;
		}
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
