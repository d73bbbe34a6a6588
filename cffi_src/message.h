/* What is said when nothing else can be done. */
#pragma once

/* Say it, to the file of --log too, and exit with 1. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
