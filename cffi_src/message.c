#define _GNU_SOURCE
#include "message.h"
#include "command_line.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void append_escaped(char *out, size_t room, const char *text)
{
	size_t n = strlen(out);

	for (; *text && n + 7 < room; text++) {
		unsigned char c = (unsigned char) *text;

		if (c == '"' || c == '\\')
			n += (size_t) snprintf(out + n, room - n, "\\%c", c);
		else if (c == '\n')
			n += (size_t) snprintf(out + n, room - n, "\\n");
		else if (c < 0x20 || c == 0x7f)
			n += (size_t) snprintf(out + n, room - n, "\\u%04x", c);
		else {
			out[n++] = (char) c;
			out[n] = '\0';
		}
	}
}

/* The file that --log names; NULL where crun takes it for the name of something else. */
static const char *log_file(void)
{
	if (!call.log || strncmp(call.log, "journald:", 9) == 0 || strncmp(call.log, "syslog:", 7) == 0)
		return NULL;
	return strncmp(call.log, "file:", 5) == 0 ? call.log + 5 : call.log;
}

/* The text to the file of --log too, in the runtime's own form: that is where engines look. */
static void log_error(const char *text)
{
	int json = call.log_format && strcmp(call.log_format, "json") == 0;
	const char *path = log_file();
	char line[8192], when[32];
	time_t now = time(NULL);
	struct tm utc;
	int fd;

	if (!path || !gmtime_r(&now, &utc))
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
	snprintf(line, sizeof(line), json ? "{\"level\":\"error\",\"msg\":\"" : "time=\"%s\" level=error msg=\"", when);
	append_escaped(line, sizeof(line) - 64, text);
	if (json)
		snprintf(line + strlen(line), sizeof(line) - strlen(line), "\",\"time\":\"%s\"}\n", when);
	else
		strcat(line, "\"\n");
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, line, strlen(line)) < 0)
		errno = 0; /* nowhere left to say so */
	close(fd);
}

void die(const char *format, ...)
{
	char text[4096] = "gpushim: ";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text + strlen(text), sizeof(text) - strlen(text), format, arguments);
	va_end(arguments);
	log_error(text);
	dprintf(STDERR_FILENO, "%s\n", text);
	exit(1);
}
