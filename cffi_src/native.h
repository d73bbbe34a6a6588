/* The system calls that Python's os lacks, one step a function: >= 0, or -errno. */
#pragma once

#include <linux/bpf.h>
#include <stddef.h>

#define GS_FILE_SIZE 4080
#define GS_UUID_SIZE 96
#define GS_SONAME_SIZE 256

#define GS_NVML_DONE 0
#define GS_NVML_LOAD 1	 /* the library cannot be loaded */
#define GS_NVML_SYMBOL 2 /* it lacks a function */
#define GS_NVML_INIT 3	 /* nvmlInit_v2 failed */
#define GS_NVML_COUNT 4	 /* nvmlDeviceGetCount_v2 failed */

#define GS_LIVE_PREPARE 1 /* the host's side: the tmpfs, its nodes, the sources of binds */
#define GS_LIVE_ENTER 2	  /* setns(2) */
#define GS_LIVE_ROOT 3	  /* the container's root is not there */
#define GS_LIVE_ITEM 4	  /* one item: the first with an error */

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

/*
 * One device that NVML knows: mig, gi and ci are -1 for a GPU itself. error is 0 or an nvmlReturn_t; uuid is text of
 * NVML's and ends with a NUL whatever it wrote. arch is 10 times the CUDA compute capability, brand an nvmlBrandType_t,
 * each -1 where this NVML does not tell.
 */
struct gs_nvml_device {
	int gpu, minor, mig, gi, ci, error, arch, brand;
	char uuid[GS_UUID_SIZE];
};

/* How far NVML came: GS_NVML_DONE, or where it stopped and with which nvmlReturn_t. */
struct gs_nvml_status {
	int stage, code;
};

/*
 * A node of major:minor at path, or a bind of source where that is not empty. uid and gid are the host's. flags: of
 * MOUNT_ATTR_RDONLY, _NOSUID, _NODEV, _NOEXEC for a bind. made: 1 by this call, 0 was there already.
 */
struct gs_item {
	const char *path, *source;
	int major, minor, mode, uid, gid, flags;
	int made, error;
};

/*
 * Where: the mount namespace (a descriptor), the path that the root has there before pivot_root(2), device and inode
 * that it has wherever it is, the host's ids of the container's root user, and the /dev in which nothing may land:
 * its device, and its inode where that alone tells (0: any inode of the device is the host's).
 */
struct gs_place {
	int ns;
	const char *root;
	unsigned long long device, inode, host_device, host_inode;
	int uid, gid;
};

/*
 * One device program: size is that of its instructions in bytes, 0 where the caller may not know, and shown is 0 where
 * the kernel keeps them to itself. name ends with a NUL.
 */
struct gs_bpf_info {
	unsigned id;
	int gpl, size, shown;
	char name[BPF_OBJ_NAME_LEN + 1];
};

/* A shared object: bits of 32 or 64, machine as in elf(5), and its DT_SONAME. */
struct gs_elf {
	int bits, machine;
	char soname[GS_SONAME_SIZE];
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
