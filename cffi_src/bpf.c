/* bpf(2) for programs of the type BPF_PROG_TYPE_CGROUP_DEVICE. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INSTRUCTION_SIZE 8

static uint64_t address(const void *at)
{
	return (uint64_t) (uintptr_t) at;
}

/* attr is the whole union, zeroed: Linux 6.17 writes behind the fields that an older BPF_PROG_QUERY has. */
static int sys_bpf(int command, union bpf_attr *attr)
{
	long done = syscall(SYS_bpf, command, attr, sizeof(*attr));

	return done < 0 ? -errno : (int) done;
}

/*
 * The ids of the programs of a cgroup in the order in which they run, or with effective those of its ancestors too: how
 * many there are, of which the first count are in out. flags are those of BPF_PROG_ATTACH; 0 with effective.
 */
int gs_bpf_query(int cgroup, int effective, unsigned *out, int count, unsigned *flags)
{
	union bpf_attr attr;
	int done;

	memset(&attr, 0, sizeof(attr));
	attr.query.target_fd = (uint32_t) cgroup;
	attr.query.attach_type = BPF_CGROUP_DEVICE;
	attr.query.query_flags = effective ? BPF_F_QUERY_EFFECTIVE : 0;
	attr.query.prog_ids = address(out);
	attr.query.prog_cnt = (uint32_t) count;
	done = sys_bpf(BPF_PROG_QUERY, &attr);
	/* It has counted them all before it finds the array too short. */
	if (done < 0 && !(done == -ENOSPC && attr.query.prog_cnt > (uint32_t) count))
		return done;
	*flags = attr.query.attach_flags;
	return (int) attr.query.prog_cnt;
}

/* A descriptor of the program; CAP_SYS_ADMIN. */
int gs_bpf_open(unsigned id)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_id = id;
	return sys_bpf(BPF_PROG_GET_FD_BY_ID, &attr);
}

/* What the kernel says of a program; its instructions are in code where size is as large as out->size. */
int gs_bpf_info(int program, struct gs_bpf_info *out, void *code, int size)
{
	struct bpf_prog_info info;
	union bpf_attr attr;
	int done;

	memset(&info, 0, sizeof(info));
	info.xlated_prog_insns = address(code);
	info.xlated_prog_len = (uint32_t) size;
	memset(&attr, 0, sizeof(attr));
	attr.info.bpf_fd = (uint32_t) program;
	attr.info.info_len = sizeof(info);
	attr.info.info = address(&info);
	done = sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
	if (done < 0)
		return done;
	memset(out, 0, sizeof(*out));
	out->id = info.id;
	out->gpl = info.gpl_compatible;
	out->size = (int) info.xlated_prog_len;
	/* It zeroes the pointer of a program with blinded constants that it does not show. */
	out->shown = info.xlated_prog_insns != 0;
	memcpy(out->name, info.name, sizeof(info.name));
	return 0;
}

/*
 * The ids of the programs that links hold at the cgroup of this id (its inode): how many there are, of which the first
 * count are in out. CAP_SYS_ADMIN; none before Linux 5.8, which cannot list links.
 */
int gs_bpf_linked(unsigned long long cgroup, unsigned *out, int count)
{
	union bpf_attr next;
	int found = 0, done;

	memset(&next, 0, sizeof(next));
	while ((done = sys_bpf(BPF_LINK_GET_NEXT_ID, &next)) == 0) {
		struct bpf_link_info info;
		union bpf_attr attr;
		int link;

		next.start_id = next.next_id;
		memset(&attr, 0, sizeof(attr));
		attr.link_id = next.start_id;
		link = sys_bpf(BPF_LINK_GET_FD_BY_ID, &attr);
		if (link == -ENOENT || link == -EAGAIN)
			continue; /* closed while we walk, or not there yet */
		if (link < 0)
			return link;
		memset(&info, 0, sizeof(info));
		memset(&attr, 0, sizeof(attr));
		attr.info.bpf_fd = (uint32_t) link;
		attr.info.info_len = sizeof(info);
		attr.info.info = address(&info);
		done = sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
		close(link);
		if (done < 0)
			return done;
		if (info.type != BPF_LINK_TYPE_CGROUP || info.cgroup.attach_type != BPF_CGROUP_DEVICE ||
		    info.cgroup.cgroup_id != cgroup)
			continue;
		if (found < count)
			out[found] = info.prog_id;
		found++;
	}
	return done == -ENOENT || done == -EINVAL ? found : done;
}

/* A descriptor of a new program. log, of size bytes or NULL, takes what the verifier says. */
int gs_bpf_load(const void *code, int size, const char *licence, const char *name, char *log, int log_size)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attr.insns = address(code);
	attr.insn_cnt = (uint32_t) (size / INSTRUCTION_SIZE);
	attr.license = address(licence);
	attr.log_level = log ? 1 : 0;
	attr.log_buf = address(log);
	attr.log_size = (uint32_t) log_size;
	strncpy(attr.prog_name, name, sizeof(attr.prog_name) - 1);
	return sys_bpf(BPF_PROG_LOAD, &attr);
}

/* No limit on locked memory, against which kernels before 5.11 count programs. */
int gs_unlimit_memlock(void)
{
	const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};

	return setrlimit(RLIMIT_MEMLOCK, &none) < 0 ? -errno : 0;
}

/* With BPF_F_REPLACE in flags it takes the place of the program replaced, which is -1 otherwise. */
int gs_bpf_attach(int cgroup, int program, unsigned flags, int replaced)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.target_fd = (uint32_t) cgroup;
	attr.attach_bpf_fd = (uint32_t) program;
	attr.attach_type = BPF_CGROUP_DEVICE;
	attr.attach_flags = flags;
	attr.replace_bpf_fd = replaced < 0 ? 0 : (uint32_t) replaced;
	return sys_bpf(BPF_PROG_ATTACH, &attr);
}
