#define _GNU_SOURCE
#include "lost.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* CLOCK_MONOTONIC. */
long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* SIGKILL to ourselves after ms: nobody need know our pid, and it cannot be caught. In D state it waits for its turn.
 */
void die_after(int ms)
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
	/* First out of the way: where the caller had closed 0 to 2, any of these numbers may be the pipe or the null.
	 */
	int safe = fcntl(pipe_end, F_DUPFD, 10), null = open("/dev/null", O_RDWR);

	for (int fd = 0; fd <= 2; fd++)
		if (dup2(null, fd) < 0)
			_exit(1);
	if (dup2(safe, 3) < 0)
		_exit(1);
	close_from(4);
	setsid();
	if (chdir("/") < 0) /* a lost child must not keep the bundle's file system busy */
		_exit(1);
}

/*
 * 1 in a grandchild that holds nothing but the pipe and ends after ms, 0 in the caller, or -errno. A grandchild, since
 * init reaps it: the runtime that we become never meets it.
 */
int start_lost_child(int pipe_end, int ms)
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
	return 1;
}
