#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Always the whole attr, zeroed: a kernel may write fields of it that an older one does not know. */
static int sys_bpf(int command, union bpf_attr *attr)
{
	long result = syscall(SYS_bpf, command, attr, sizeof(*attr));

	return result < 0 ? -errno : (int) result;
}

/*
 * The ids of the device programs of a cgroup2 directory, in the order in which they run, and its attach flags. How many
 * there are, of which the first count are in ids. effective: those of the directories above it as well.
 */
int gs_device_programs(int cgroup, int effective, unsigned *ids, int count, int *flags)
{
	union bpf_attr attr;
	int error;

	memset(&attr, 0, sizeof(attr));
	attr.query.target_fd = (unsigned) cgroup;
	attr.query.attach_type = BPF_CGROUP_DEVICE;
	attr.query.query_flags = effective ? BPF_F_QUERY_EFFECTIVE : 0;
	attr.query.prog_ids = (uint64_t) (uintptr_t) ids;
	attr.query.prog_cnt = (unsigned) count;
	error = sys_bpf(BPF_PROG_QUERY, &attr);
	*flags = (int) attr.query.attach_flags;
	return error < 0 && error != -ENOSPC ? error : (int) attr.query.prog_cnt;
}

int gs_program_fd(unsigned id)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_id = id;
	return sys_bpf(BPF_PROG_GET_FD_BY_ID, &attr);
}

/* What the kernel tells of a program, with its code where that is at most size bytes and may be seen. */
int gs_program_info(int fd, struct gs_program *out, void *code, int size)
{
	struct bpf_prog_info info;
	union bpf_attr attr;
	int error;

	memset(&info, 0, sizeof(info));
	memset(&attr, 0, sizeof(attr));
	memset(out, 0, sizeof(*out));
	info.xlated_prog_insns = (uint64_t) (uintptr_t) code;
	info.xlated_prog_len = (unsigned) size;
	attr.info.bpf_fd = (unsigned) fd;
	attr.info.info_len = sizeof(info);
	attr.info.info = (uint64_t) (uintptr_t) &info;
	error = sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
	if (error < 0)
		return error;
	out->id = info.id;
	out->size = (int) info.xlated_prog_len;
	/* Of a blinded program under kernel.kptr_restrict the pointer is zeroed, and nothing is copied. */
	out->dumped = size > 0 && info.xlated_prog_insns != 0;
	out->gpl = (int) info.gpl_compatible;
	memcpy(out->name, info.name, sizeof(info.name));
	return 0;
}

static int load(const void *code, int size, int gpl, const char *name)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attr.insns = (uint64_t) (uintptr_t) code;
	attr.insn_cnt = (unsigned) size / sizeof(struct bpf_insn);
	attr.license = (uint64_t) (uintptr_t) (gpl ? "GPL" : "Apache");
	strncpy(attr.prog_name, name, sizeof(attr.prog_name) - 1);
	return sys_bpf(BPF_PROG_LOAD, &attr);
}

/* A descriptor of a new device program. Before 5.11 its memory is charged to RLIMIT_MEMLOCK, which may be 64 KiB. */
int gs_load_program(const void *code, int size, int gpl, const char *name)
{
	const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	int fd = load(code, size, gpl, name);

	if (fd == -EPERM && setrlimit(RLIMIT_MEMLOCK, &all) == 0)
		fd = load(code, size, gpl, name);
	return fd;
}

/* Put program in the place of old on cgroup at once; flags: with which old was attached. */
int gs_replace_program(int cgroup, int program, int old, int flags)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.target_fd = (unsigned) cgroup;
	attr.attach_bpf_fd = (unsigned) program;
	attr.attach_type = BPF_CGROUP_DEVICE;
	attr.attach_flags = (unsigned) flags;
	/* Without BPF_F_ALLOW_MULTI there is one program at most, and attaching replaces it. */
	if (flags & BPF_F_ALLOW_MULTI) {
		attr.attach_flags |= BPF_F_REPLACE;
		attr.replace_bpf_fd = (unsigned) old;
	}
	return sys_bpf(BPF_PROG_ATTACH, &attr);
}
