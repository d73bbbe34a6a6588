/*
 * What a container can open: opens ITEM..., where an item is PATH:MODE or c:MAJOR:MINOR:MODE (a node of these numbers
 * is made for the question), MODE of r, w or rw. Prints "ITEM ERRNO-NAME" for each, "open" where it opened. `wait`
 * instead does nothing until it is killed, for others to ask in the same container.
 *
 * A node whose major has no driver opens with ENXIO when the device cgroup allows it and with EPERM when it does not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int flags_of(const char *mode)
{
	return strcmp(mode, "r") == 0 ? O_RDONLY : strcmp(mode, "w") == 0 ? O_WRONLY : O_RDWR;
}

static const char *try_open(const char *path, const char *mode)
{
	int fd = open(path, flags_of(mode) | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return strerrorname_np(errno);
	close(fd);
	return "open";
}

static const char *try_numbers(unsigned major, unsigned minor, const char *mode)
{
	static const char path[] = "/asked";
	const char *answer;

	unlink(path);
	if (mknod(path, S_IFCHR | 0666, makedev(major, minor)) < 0)
		return "no mknod";
	answer = try_open(path, mode);
	unlink(path);
	return answer;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "wait") == 0)
		return pause();
	for (int i = 1; i < argc; i++) {
		char *mode = strrchr(argv[i], ':');
		unsigned major, minor;

		if (!mode)
			return 2;
		if (sscanf(argv[i], "c:%u:%u:", &major, &minor) == 2) {
			printf("%s %s\n", argv[i], try_numbers(major, minor, mode + 1));
			continue;
		}
		*mode = '\0';
		printf("%s:%s %s\n", argv[i], mode + 1, try_open(argv[i], mode + 1));
	}
	return 0;
}
