#define _GNU_SOURCE
#include "lost.h"
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/* linux/mount.h and sys/mount.h do not go together before glibc 2.37. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
int umount2(const char *target, int flags);

#define DETACH 0x2    /* MNT_DETACH */
#define NO_FOLLOW 0x8 /* UMOUNT_NOFOLLOW */

/* What the child tells its parent: the items have pointers and stay where they are. */
struct answer {
	int finished, stage, error;
	struct {
		int made, error;
	} items[];
};

/* What the child holds of one item, and has done for it: to be undone when a later one fails. */
struct done {
	int parent, tree;
	int directories; /* components that were made */
	int covers;	 /* a file or directory that was there already */
};

static int sys_openat2(int dir, const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = resolve};

	return (int) syscall(SYS_openat2, dir, path, &how, sizeof(how));
}

static int sys_open_tree(int dir, const char *path, unsigned flags)
{
	return (int) syscall(SYS_open_tree, dir, path, flags | OPEN_TREE_CLOEXEC);
}

static int sys_move_mount(int tree, int target)
{
	return (int) syscall(SYS_move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

static int sys_mount_setattr(int tree, const struct mount_attr *attr)
{
	return (int) syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, attr, sizeof(*attr));
}

/* A detached mount of the host's source with flags; Linux 5.12 for these, which a node does without. */
static int clone_source(const struct gs_item *item)
{
	struct mount_attr attr = {.attr_set = (uint64_t) item->flags, .propagation = MS_PRIVATE};
	int tree = sys_open_tree(AT_FDCWD, item->source, OPEN_TREE_CLONE | AT_RECURSIVE);

	if (tree >= 0 && sys_mount_setattr(tree, &attr) < 0 && (item->flags & MOUNT_ATTR_RDONLY || errno != ENOSYS))
		return -1;
	return tree;
}

/*
 * A node on the tmpfs that is the working directory: its superblock is the host's, so that it opens in any container.
 * It stays there under a name of its own: a mount of what is unlinked cannot be moved.
 */
static int make_node(const struct gs_item *item, int number)
{
	dev_t numbers = makedev((unsigned) item->major, (unsigned) item->minor);
	char name[16];

	snprintf(name, sizeof(name), "%d", number);
	if (mknodat(AT_FDCWD, name, S_IFCHR | (mode_t) item->mode, numbers) < 0 ||
	    fchownat(AT_FDCWD, name, (uid_t) item->uid, (gid_t) item->gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	return sys_open_tree(AT_FDCWD, name, OPEN_TREE_CLONE);
}

/* A private mount namespace whose /proc is a tmpfs of our own, as the working directory. */
static int enter_tmpfs(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k") < 0)
		return -1;
	return chdir("/proc");
}

/* Each item as a detached mount, while we still see the host. */
static int prepare(const struct gs_item *items, int count, struct done *done)
{
	int nodes = 0;

	umask(0);
	for (int i = 0; i < count; i++) {
		done[i].tree = -1;
		nodes += !*items[i].source;
		if (*items[i].source && (done[i].tree = clone_source(&items[i])) < 0)
			return i;
	}
	if (nodes && enter_tmpfs() < 0)
		return count;
	for (int i = 0; i < count; i++)
		if (!*items[i].source && (done[i].tree = make_node(&items[i], i)) < 0)
			return i;
	return -1;
}

static int is_root(int fd, const struct gs_place *place)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_dev == place->device && st.st_ino == place->inode;
}

/* The container's root in its own namespace: where the runtime made it, or / after pivot_root(2). */
static int open_root(const struct gs_place *place)
{
	const char *const paths[] = {place->root, "/"};

	for (int i = 0; i < 2; i++) {
		int fd = open(paths[i], O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (fd >= 0 && is_root(fd, place))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	errno = ENOENT;
	return -1;
}

/*
 * The directory of path below root, made with those above it where it is missing. For a node no link is followed, since
 * /dev is no place for one and the image could have planted it; for a bind a link leads where it leads in the root.
 */
static int open_parent(int root, const struct gs_item *item, struct done *done)
{
	uint64_t resolve = *item->source ? RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
					 : RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS;
	int here = fcntl(root, F_DUPFD_CLOEXEC, 0);
	char path[4096];

	if (strlen(item->path) >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(path, item->path + 1);
	for (char *slash = strchr(path, '/'); here >= 0 && slash; slash = strchr(slash + 1, '/')) {
		const char *name;
		int next;

		*slash = '\0';
		name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
		next = sys_openat2(root, path, O_PATH | O_DIRECTORY, resolve);
		if (next < 0 && errno == ENOENT && mkdirat(here, name, 0755) == 0) {
			done->directories++;
			next = sys_openat2(root, path, O_PATH | O_DIRECTORY, resolve);
		}
		close(here);
		here = next;
		*slash = '/';
	}
	return here;
}

static int is_hosts(int parent, const struct gs_place *place)
{
	struct stat st;

	return fstat(parent, &st) < 0 ||
	       (st.st_dev == place->host_device && (!place->host_inode || st.st_ino == place->host_inode));
}

static const char *base(const char *path)
{
	return strrchr(path, '/') + 1;
}

/* Whether the very thing is there; done->covers where there is something that a bind may cover; -1 with errno. */
static int is_there(const struct gs_item *item, struct done *done)
{
	struct stat st, own;

	if (fstatat(done->parent, base(item->path), &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -1;
	if (fstat(done->tree, &own) < 0)
		return -1;
	if (*item->source ? st.st_dev == own.st_dev && st.st_ino == own.st_ino
			  : S_ISCHR(st.st_mode) && st.st_rdev == own.st_rdev)
		return 1;
	done->covers = *item->source && (S_ISDIR(own.st_mode) ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode));
	errno = EEXIST;
	return done->covers ? 0 : -1;
}

/* What the mount covers, made empty where there is nothing. */
static int open_target(const char *name, const struct done *done)
{
	struct stat st;
	int fd;

	if (done->covers || fstat(done->tree, &st) < 0)
		return done->covers ? openat(done->parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (S_ISDIR(st.st_mode)) {
		if (mkdirat(done->parent, name, 0755) < 0)
			return -1;
	} else {
		fd = openat(done->parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
		if (fd < 0)
			return -1;
		close(fd);
	}
	return openat(done->parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static void remove_target(const char *name, const struct done *done)
{
	if (!done->covers && unlinkat(done->parent, name, 0) < 0)
		unlinkat(done->parent, name, AT_REMOVEDIR);
}

/* 1 made, 0 there already, -1 with errno. */
static int put(int root, const struct gs_place *place, const struct gs_item *item, struct done *done)
{
	int target, there, error;

	done->parent = open_parent(root, item, done);
	if (done->parent < 0)
		return -1;
	if (is_hosts(done->parent, place)) {
		errno = EXDEV;
		return -1;
	}
	there = is_there(item, done);
	if (there)
		return there < 0 ? -1 : 0;
	target = open_target(base(item->path), done);
	if (target >= 0 && sys_move_mount(done->tree, target) == 0) {
		close(target);
		return 1;
	}
	error = errno;
	if (target >= 0) {
		close(target);
		remove_target(base(item->path), done);
	}
	errno = error;
	return -1;
}

/* Up to as many of the directories of path, the innermost first, as were made for it. */
static void remove_directories(int root, const char *path, int made)
{
	char parent[4096];

	if (strlen(path) >= sizeof(parent))
		return;
	strcpy(parent, path + 1);
	for (char *slash; made && (slash = strrchr(parent, '/'));) {
		int dir;

		*slash = '\0';
		slash = strrchr(parent, '/');
		dir = slash ? -1 : fcntl(root, F_DUPFD_CLOEXEC, 0);
		if (slash) {
			*slash = '\0';
			dir = sys_openat2(root, parent, O_PATH | O_DIRECTORY,
					  RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS);
			*slash = '/';
		}
		made -= dir >= 0 && unlinkat(dir, slash ? slash + 1 : parent, AT_REMOVEDIR) == 0;
		close(dir);
	}
}

/* As it was before item. */
static void take_back(int root, const struct gs_item *item, const struct done *done, int made)
{
	if (made && fchdir(done->parent) == 0) {
		umount2(base(item->path), DETACH | NO_FOLLOW);
		remove_target(base(item->path), done);
	}
	remove_directories(root, item->path, done->directories);
}

static void fail(struct answer *answer, int stage)
{
	answer->error = errno;
	answer->stage = stage;
	_exit(1);
}

__attribute__((noreturn)) static void give(const struct gs_place *place, const struct gs_item *items, int count,
					   struct answer *answer)
{
	struct done *done = calloc((size_t) count + 1, sizeof(*done));
	int root, at;

	if (!done)
		_exit(1);
	at = prepare(items, count, done);
	if (at >= 0) {
		answer->items[at < count ? at : 0].error = at < count ? errno : 0;
		fail(answer, GS_LIVE_PREPARE);
	}
	if (setns(place->ns, CLONE_NEWNS) < 0)
		fail(answer, GS_LIVE_ENTER);
	root = open_root(place);
	if (root < 0)
		fail(answer, GS_LIVE_ROOT);
	/* In a user namespace what is made must belong to its root: the superblock knows no other (EOVERFLOW). */
	setfsgid((gid_t) place->gid);
	setfsuid((uid_t) place->uid);
	for (at = 0; at < count; at++) {
		int made = put(root, place, &items[at], &done[at]);

		answer->items[at].made = made == 1;
		if (made < 0)
			answer->items[at].error = errno;
		if (made >= 0 || errno == EXDEV) /* what would land in the host's /dev is not given; the rest is */
			continue;
		answer->error = errno;
		answer->stage = GS_LIVE_ITEM;
		for (; at >= 0; at--)
			take_back(root, &items[at], &done[at], answer->items[at].made);
		_exit(1);
	}
	answer->finished = 1;
	_exit(0);
}

/*
 * All of items, or none of them: 0, or -errno with the stage that failed. A child does it, since no other process may
 * be in two mount namespaces; it ends after ms, whatever file system the container has.
 */
int gs_give(const struct gs_place *place, struct gs_item *items, int count, int ms, int *stage)
{
	size_t size = sizeof(struct answer) + (size_t) count * sizeof(((struct answer *) NULL)->items[0]);
	struct answer *answer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child;
	int error;

	*stage = GS_LIVE_PREPARE;
	if (answer == MAP_FAILED)
		return -errno;
	child = fork();
	if (child == 0) {
		die_after(ms);
		give(place, items, count, answer);
	}
	error = child < 0 ? errno : 0;
	/* An engine that ignores SIGCHLD has it reaped already (ECHILD): how it ended stands in answer. */
	while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	for (int i = 0; i < count; i++) {
		items[i].made = answer->items[i].made;
		items[i].error = answer->items[i].error;
	}
	*stage = answer->stage ? answer->stage : *stage;
	if (!error && !answer->finished)
		error = answer->error ? answer->error : ETIMEDOUT;
	munmap(answer, size);
	return -error;
}
