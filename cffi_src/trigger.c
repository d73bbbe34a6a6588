#define _GNU_SOURCE
#include "trigger.h"
#include "command_line.h"
#include "compiled.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const requests[] = {"NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "nvidia-container-devices", NULL};
/* What the shim takes out, and a hook leaves as it is. */
static const char *const leftovers[] = {"nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpushim-hook",
					"dev.gpushim/", NULL};

/* A window of config.json: what is scanned at once, behind the end of what was scanned before. */
#define OVERLAP 4096
static char window[OVERLAP + 65536];
static size_t window_size;

static int in_window(const char *text)
{
	return *text && memmem(window, window_size, text, strlen(text)) != NULL;
}

/* Engines write <, >, &, quotes, controls and what is not ASCII as escapes; nobody has a reason to for the others. */
static int spelt_only_to_hide(unsigned character)
{
	return character >= 0x20 && character < 0x7f && !strchr("<>&\"\\'", (int) character);
}

/* Whether no escape that engines write of themselves spells a character of text. */
static int plain(const char *text)
{
	for (; *text; text++)
		if (!spelt_only_to_hide((unsigned char) *text))
			return 0;
	return 1;
}

static int configured_trigger(const char *key, const char *value)
{
	if (strcmp(key, "trigger") != 0)
		return 0;
	/* One that is longer than the overlap could hide across two windows. */
	if (strlen(value) > OVERLAP || in_window(value))
		return 1;
	/* One with a character that spells() takes for harmless could hide behind any escape. */
	return !plain(value) && memchr(window, '\\', window_size);
}

/* An escape that could spell a character of a trigger: all but what engines write for <, >, &, quotes and controls. */
static int spells(const char *escape, size_t size)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	unsigned value;

	if (size < 2)
		return 1;
	if (escape[1] != 'u')
		return escape[1] == '/';
	if (size < 6)
		return 1;
	for (int i = 2; i < 6; i++)
		if (!memchr(digits, escape[i], sizeof(digits) - 1))
			return 1; /* no JSON: Python's to say */
	if (sscanf(escape + 2, "%4x", &value) != 1)
		return 1;
	return spelt_only_to_hide(value);
}

/* final: nothing follows, so that a cut escape is an odd one and not one that the next window completes. */
static int hides(int final)
{
	const char *end = window + window_size, *at = window;

	while ((at = memchr(at, '\\', (size_t) (end - at)))) {
		if (end - at < 6 && !final)
			return 0;
		if (spells(at, (size_t) (end - at)))
			return 1;
		at += 2;
		if (at >= end)
			return 0;
	}
	return 0;
}

static int any_in_window(const char *const *texts)
{
	for (; *texts; texts++)
		if (in_window(*texts))
			return 1;
	return 0;
}

static int triggered(int with_settings, int with_leftovers)
{
	if (any_in_window(requests) || (with_leftovers && any_in_window(leftovers)))
		return 1;
	return with_settings && each_record(configured_trigger);
}

/* What cannot be read is for Python, or the runtime, to tell. */
static int scan(int with_settings, int with_leftovers)
{
	char path[PATH_MAX];
	struct stat st;
	size_t kept = 0;
	ssize_t n;
	int fd, answer = -1, empty = 1;

	if (call.odd || snprintf(path, sizeof(path), "%s/config.json", call.bundle) >= (int) sizeof(path))
		return 1;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return 1;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		answer = 1;
	while (answer < 0) {
		n = read(fd, window + kept, sizeof(window) - kept);
		if (n < 0 && errno == EINTR)
			continue;
		window_size = kept + (size_t) (n > 0 ? n : 0);
		if (n < 0)
			answer = 1;
		else if (n == 0)
			answer = empty || hides(1);
		else if (triggered(with_settings, with_leftovers) || hides(0))
			answer = 1;
		empty = 0;
		/* An escape at the end, or a trigger, may go on in the next window. */
		kept = window_size < OVERLAP ? window_size : OVERLAP;
		/* In the middle of a run of backslashes nobody can tell which of them begins an escape. */
		if (window_size > kept && window[window_size - kept - 1] == '\\' && window[window_size - kept] == '\\')
			answer = 1;
		memmove(window, window + window_size - kept, kept);
	}
	close(fd);
	return answer;
}

/* Whether config.json may ask for something, or hold something that is to be taken out. */
int asks(int with_settings)
{
	return scan(with_settings, 1);
}

/* Whether config.json may ask for something. */
int asks_hook(void)
{
	return scan(1, 0);
}
