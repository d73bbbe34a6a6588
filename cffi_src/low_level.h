/* The low-level runtime: looked up at each start, never this program itself. */
#pragma once

#include <sys/stat.h>

/* Which file this program is, and under which name it was called. */
void know_self(const struct stat *program, const char *handler);
const char *find_runtime(void);
__attribute__((noreturn)) void become_runtime(char **argv);
