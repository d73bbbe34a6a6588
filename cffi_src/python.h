/* The interpreter beside this program, and what it is started with. */
#pragma once

#define SHIM "gpushim"
#define HOOKS "gpushim_hooks"

void know_python(const char *self);
int compile_settings(void);
__attribute__((noreturn)) void no_python(const char *why);
__attribute__((noreturn)) void start_python(const char *package, const char *const *first, int argc, char **argv);
