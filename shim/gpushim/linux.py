"""The system calls that Python's os lacks: the one importer of the C part (cffi_src/native.h)."""

import posix as os
import sys

from gpushim._native import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INTS = 6  # of struct gs_stat and of struct gs_capability


_CODE = sys.getfilesystemencoding()


def _bytes(path: str) -> bytes:
    return path.encode(_CODE, "surrogateescape")


def _paths(paths: list[str]) -> bytes:
    return b"\0".join([_bytes(path) for path in paths]) + b"\0"


def stat_many(paths: list[str]) -> list[list[int]]:
    """For each path `[errno, mode, major, minor, uid, gid]` of lstat(2); the rest is 0 when errno is not."""
    if not paths:
        return []
    out = ffi.new("struct gs_stat[]", len(paths))
    lib.gs_stat_many(_paths(paths), len(paths), out)
    return _rows(out, len(paths))


def capabilities(directory: str) -> list[list[int]]:
    """`[gpu, gi, ci, minor, mode, errno]` of each access file below *directory* (struct gs_capability).

    Source: kernel-open/nvidia/nv-caps.c, "DeviceFileMinor", "DeviceFileMode". OSError where it is not there.
    """
    room = 512  # 16 GPUs with 7 instances of one compute instance are 226
    path = _bytes(directory)
    while True:
        out = ffi.new("struct gs_capability[]", room)
        count = lib.gs_capabilities(path, out, room)
        if count < 0:
            raise _error(count, directory)
        if count <= room:
            return _rows(out, count)
        room = count


def read_files(paths: list[str], patience: float, deadline: float) -> list[tuple[int, bytes]]:
    """`(errno, first 4 KiB)` of each file, read where a reader that hangs does no harm.

    After *patience* seconds each file that has not come gets a reader of its own, until *deadline* seconds
    from now: ETIMEDOUT is one that has not come then.
    """
    out = ffi.new("struct gs_file[]", len(paths))
    left = lib.gs_read_files(_paths(paths), len(paths), int(patience * 1000), int(deadline * 1000), out)
    if left < 0:
        raise _error(left, paths[0])
    return [(one.error, ffi.buffer(one.data, one.size)[:]) for one in out]


NVML_LOAD: int = lib.GS_NVML_LOAD
NVML_SYMBOL: int = lib.GS_NVML_SYMBOL


def nvml(library: str, deadline: float) -> tuple[int, int, list[tuple[list[int], bytes]]]:
    """The stage that NVML of *library* failed at (0: none), its nvmlReturn_t, and each device that it knows.

    A device is `[gpu, minor, mig, gi, ci, nvmlReturn_t, arch, brand]` and its UUID. TimeoutError after
    *deadline* seconds, ChildProcessError or another OSError where it crashed or made no sense.
    """
    room = 1024  # 16 GPUs with 7 MIG devices are 128; a thousand are none
    out, status = ffi.new("struct gs_nvml_device[]", room), ffi.new("struct gs_nvml_status *")
    count = lib.gs_nvml(_bytes(library), int(deadline * 1000), out, room, status)
    if count < 0:
        raise _error(count, library)
    rows = []
    for one in out[0 : min(count, room)]:
        numbers = [one.gpu, one.minor, one.mig, one.gi, one.ci, one.error, one.arch, one.brand]
        rows.append((numbers, ffi.string(one.uuid)))
    return status.stage, status.code, rows


def cuda_version(library: str, deadline: float) -> int:
    """1000 times major and 10 times minor of the CUDA version of *library*; 0 where it does not tell.

    The driver is not initialised. OSError where it ended its process, or took more than *deadline* seconds.
    """
    version: int = lib.gs_cuda_version(_bytes(library), int(deadline * 1000))
    if version < 0:
        raise _error(version, library)
    return version


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """A descriptor of *path* with the directory *root* as /, whatever links the path meets (openat2(2))."""
    fd: int = lib.gs_open_in_root(root, _bytes(path), flags, mode)
    if fd < 0:
        raise _error(fd, path)
    return fd


def elf(fd: int, path: str) -> tuple[int, int, str]:
    """Word size in bits, machine (elf(5), e_machine) and SONAME of the shared object *fd*; empty without one.

    OSError ENOEXEC where it is none: bounded reads of its headers, whatever they say.
    """
    out = ffi.new("struct gs_elf *")
    error = lib.gs_elf(fd, out)
    if error < 0:
        raise _error(error, path)
    return out.bits, out.machine, ffi.string(out.soname).decode("utf-8", "replace")


# What give() was at when something failed (native.h).
PREPARE: int = lib.GS_LIVE_PREPARE
ENTER: int = lib.GS_LIVE_ENTER
ROOT: int = lib.GS_LIVE_ROOT
ITEM: int = lib.GS_LIVE_ITEM

# Of mount_setattr(2), by the names that mount options have.
ATTRIBUTES: dict[str, int] = {
    "ro": lib.MOUNT_ATTR_RDONLY,
    "nosuid": lib.MOUNT_ATTR_NOSUID,
    "nodev": lib.MOUNT_ATTR_NODEV,
    "noexec": lib.MOUNT_ATTR_NOEXEC,
}


class Given:
    """How `give` ended: *stage* and *error* (an errno) are 0 where all went well.

    *made* and *errors* have an entry for each item: whether it was made by this call, and its errno. An item
    with EXDEV would have landed in the host's /dev and is left out.
    """

    __slots__ = ("error", "errors", "made", "stage")

    def __init__(self, stage: int, error: int, made: list[bool], errors: list[int]) -> None:
        self.stage = stage
        self.error = error
        self.made = made
        self.errors = errors


def give(place: "tuple[Any, ...]", items: "list[tuple[Any, ...]]", deadline: float) -> Given:
    """Make *items* appear in the mount namespace that *place* describes: all of them, or none.

    *place*: the fields of struct gs_place. An item: path, source, major, minor, mode, uid, gid, flags, as in
    struct gs_item; a source that is not empty is bound, else a node is made. *deadline* in seconds.
    """
    ns, root, *rest = place
    kept = [ffi.new("char[]", _bytes(root))]
    out = ffi.new("struct gs_item[]", len(items))
    for item, (path, source, *numbers) in zip(out, items, strict=True):
        kept += [ffi.new("char[]", _bytes(path)), ffi.new("char[]", _bytes(source))]
        item.path, item.source = kept[-2], kept[-1]
        item.major, item.minor, item.mode, item.uid, item.gid, item.flags = numbers
    where = ffi.new("struct gs_place *", [ns, kept[0], *rest])
    stage = ffi.new("int *")
    error = -lib.gs_give(where, out, len(items), int(deadline * 1000), stage)
    made = [bool(item.made) for item in out]
    return Given(stage[0] if error else 0, error, made, [item.error for item in out])


BPF_OVERRIDE: int = lib.BPF_F_ALLOW_OVERRIDE
BPF_MULTI: int = lib.BPF_F_ALLOW_MULTI
BPF_REPLACE: int = lib.BPF_F_REPLACE


def device_programs(cgroup: int, *, effective: bool = False) -> tuple[int, list[int]]:
    """The attach flags and the ids of the device programs of a cgroup2 directory, in the order they run.

    *effective*: those of its ancestors too; the flags are then 0. OSError with the directory.
    """
    flags = ffi.new("unsigned *")
    room = 64
    while True:
        ids = ffi.new("unsigned[]", room)
        count = lib.gs_bpf_query(cgroup, effective, ids, room, flags)
        if count < 0:
            raise _error(count, os.readlink(f"/proc/self/fd/{cgroup}"))
        if count <= room:
            return flags[0], list(ids[0:count])
        room = count


def linked_programs(cgroup: int) -> list[int]:
    """The ids of the device programs that links hold at a cgroup2 directory; CAP_SYS_ADMIN, else OSError."""
    room = 64
    while True:
        ids = ffi.new("unsigned[]", room)
        count = lib.gs_bpf_linked(os.fstat(cgroup).st_ino, ids, room)
        if count < 0:
            raise _error(count, "bpf links")
        if count <= room:
            return list(ids[0:count])
        room = count


def open_program(id: int) -> int:
    """A descriptor of the program *id*; OSError where it is gone, or without CAP_SYS_ADMIN."""
    fd: int = lib.gs_bpf_open(id)
    if fd < 0:
        raise _error(fd, f"bpf program {id}")
    return fd


def program_info(program: int) -> tuple[int, str, bool, int, "bytes | None"]:
    """Id, name, whether its licence is the GPL, bytes of its instructions, and these or None where kept."""
    info = ffi.new("struct gs_bpf_info *")
    room = 4096
    while True:
        code = ffi.new("char[]", room)
        done = lib.gs_bpf_info(program, info, code, room)
        if done < 0:
            raise _error(done, "bpf program")
        if info.size <= room:
            break
        room = info.size
    shown = ffi.buffer(code, info.size)[:] if info.shown and info.size else None
    return info.id, ffi.string(info.name).decode("ascii", "replace"), bool(info.gpl), info.size, shown


def load_program(code: bytes, licence: bytes, name: str) -> int:
    """A descriptor of a new device program; OSError with what the verifier says."""
    label = name.encode()
    fd: int = lib.gs_bpf_load(code, len(code), licence, label, ffi.NULL, 0)
    if fd >= 0:
        return fd
    import errno  # 0.1 ms that a program which loads does not pay

    if fd == -errno.EPERM:
        lib.gs_unlimit_memlock()  # as runc has it, which goes on where that is refused
    size = 1 << 20
    log = ffi.new("char[]", size)
    for _ in range(5):  # EAGAIN: a signal came while the verifier ran (libbpf, sys_bpf_prog_load)
        fd = lib.gs_bpf_load(code, len(code), licence, label, log, size)
        if fd >= 0:
            return fd
        if fd != -errno.EAGAIN:
            break
    lines = ffi.string(log).decode("ascii", "replace").splitlines()
    said = [line for line in lines if line and not line.startswith("processed ")]
    raise _error(fd, said[-1] if said else "bpf program")


def attach_program(cgroup: int, program: int, flags: int, replaced: int = -1) -> None:
    """Attach *program* to a cgroup2 directory, with BPF_REPLACE in *flags* in the place of *replaced*."""
    done = lib.gs_bpf_attach(cgroup, program, flags, replaced)
    if done < 0:
        raise _error(done, os.readlink(f"/proc/self/fd/{cgroup}"))


def _rows(out: "Any", count: int) -> list[list[int]]:
    flat = memoryview(ffi.buffer(out, count * _INTS * 4)).cast("i").tolist()
    return [flat[at : at + _INTS] for at in range(0, len(flat), _INTS)]


def _error(negative: int, path: str) -> OSError:
    return OSError(-negative, os.strerror(-negative), path)
