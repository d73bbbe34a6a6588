/* gpushim-hook: the launcher under the name of a hook. */
#pragma once

int is_hook(const char *name);
__attribute__((noreturn)) void run_hook(int argc, char **argv);
