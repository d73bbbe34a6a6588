/* The system calls that Python's os lacks, one step a function: >= 0, or -errno. */
#pragma once

#include <stddef.h>

#define GS_FILE_SIZE 4080

/* lstat(2) of one path: error is 0 or an errno, the rest is 0 with it. */
struct gs_stat {
	int error, mode, major, minor, uid, gid;
};

/*
 * One access file below /proc/driver/nvidia/capabilities: gi and ci are -1 where the path has none, and gpu is -1
 * for mig/config (gi 0) and mig/monitor (gi 1). error is 0 or an errno: EINVAL where the text is no capability.
 */
struct gs_capability {
	int gpu, gi, ci, minor, mode, error;
};

/* The first bytes of one file: error is 0 or an errno, ETIMEDOUT where nothing came in time. */
struct gs_file {
	int error, size;
	char data[GS_FILE_SIZE];
};

void gs_stat_many(const char *paths, int count, struct gs_stat *out);
int gs_open_in_root(int root, const char *path, int flags, int mode);
int gs_capabilities(const char *directory, struct gs_capability *out, int count);
int gs_read_files(const char *paths, int count, int patience_ms, int deadline_ms, struct gs_file *out);
