#define GS_FILE_SIZE ...
#define GS_UUID_SIZE ...
#define GS_NVML_DONE ...
#define GS_NVML_LOAD ...
#define GS_NVML_SYMBOL ...
#define GS_NVML_INIT ...
#define GS_NVML_COUNT ...
#define GS_LIVE_PREPARE ...
#define GS_LIVE_ENTER ...
#define GS_LIVE_ROOT ...
#define GS_LIVE_ITEM ...
#define MOUNT_ATTR_RDONLY ...
#define MOUNT_ATTR_NOSUID ...
#define MOUNT_ATTR_NODEV ...
#define MOUNT_ATTR_NOEXEC ...
#define BPF_F_ALLOW_OVERRIDE ...
#define BPF_F_ALLOW_MULTI ...
#define BPF_F_REPLACE ...

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

struct gs_nvml_device {
	int gpu, minor, mig, gi, ci, error, arch, brand;
	char uuid[...];
};

struct gs_nvml_status {
	int stage, code;
};

struct gs_item {
	const char *path, *source;
	int major, minor, mode, uid, gid, flags;
	int made, error;
};

struct gs_place {
	int ns;
	const char *root;
	unsigned long long device, inode, host_device, host_inode;
	int uid, gid;
};

struct gs_bpf_info {
	unsigned id;
	int gpl, size, shown;
	char name[...];
};

struct gs_elf {
	int bits, machine;
	char soname[...];
};

void gs_stat_many(const char *paths, int count, struct gs_stat *out);
int gs_open_in_root(int root, const char *path, int flags, int mode);
int gs_capabilities(const char *directory, struct gs_capability *out, int count);
int gs_read_files(const char *paths, int count, int patience_ms, int deadline_ms, struct gs_file *out);
int gs_nvml(const char *library, int deadline_ms, struct gs_nvml_device *out, int count, struct gs_nvml_status *status);
int gs_give(const struct gs_place *place, struct gs_item *items, int count, int ms, int *stage);
int gs_bpf_query(int cgroup, int effective, unsigned *out, int count, unsigned *flags);
int gs_bpf_open(unsigned id);
int gs_bpf_info(int program, struct gs_bpf_info *out, void *code, int size);
int gs_bpf_linked(unsigned long long cgroup, unsigned *out, int count);
int gs_bpf_load(const void *code, int size, const char *licence, const char *name, char *log, int log_size);
int gs_bpf_attach(int cgroup, int program, unsigned flags, int replaced);
int gs_unlimit_memlock(void);
int gs_elf(int fd, struct gs_elf *out);
int gs_cuda_version(const char *library, int deadline_ms);
