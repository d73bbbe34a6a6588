/* The CUDA version of a driver, asked of its libcuda in a child that may be lost. */
#define _GNU_SOURCE
#include "lost.h"
#include "native.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

/* cuDriverGetVersion is a constant of the library: it needs no cuInit, which would initialise the driver. */
__attribute__((noreturn)) static void tell_version(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*get)(int *) = library ? (int (*)(int *)) dlsym(library, "cuDriverGetVersion") : NULL;
	int version = 0;

	if (!get || get(&version) != 0)
		version = 0;
	_exit(write(3, &version, sizeof(version)) != sizeof(version));
}

/* 1000 times the major and 10 times the minor version, 0 where library does not tell, or -errno. */
int gs_cuda_version(const char *library, int deadline_ms)
{
	int ends[2], version = 0, got;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	got = start_lost_child(ends[1], deadline_ms);
	if (got > 0)
		tell_version(library);
	close(ends[1]);
	if (got == 0) {
		struct pollfd ready = {.fd = ends[0], .events = POLLIN};

		if (poll(&ready, 1, deadline_ms) <= 0)
			got = -ETIMEDOUT;
		else if (read(ends[0], &version, sizeof(version)) != sizeof(version))
			got = -ECHILD;
	}
	close(ends[0]);
	return got < 0 ? got : version;
}
