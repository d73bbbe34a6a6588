#define GS_FILE_SIZE ...

struct gs_stat {
	int error, mode, major, minor, uid, gid;
};

struct gs_capability {
	int gpu, gi, ci, minor, mode, error;
};

struct gs_file {
	int error, size;
	char data[...];
};

void gs_stat_many(const char *paths, int count, struct gs_stat *out);
int gs_open_in_root(int root, const char *path, int flags, int mode);
int gs_capabilities(const char *directory, struct gs_capability *out, int count);
int gs_read_files(const char *paths, int count, int patience_ms, int deadline_ms, struct gs_file *out);
