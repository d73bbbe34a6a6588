"""Writing in a container's root before the container runs: by descriptor, and never out of it.

Every path is opened with the root as / (openat2(2), RESOLVE_IN_ROOT), each file is made anew beside its
place and renamed over it, and what is made belongs to the container's root user. An image may hold anything
at any of these paths.
"""

import errno
import posix as os

from gpushim import linux
from gpushim.errors import Conflict
from gpushim.files import read_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.driver_files import RootWork

DROP_IN = "/etc/ld.so.conf.d/00-gpushim.conf"
CACHE = "/etc/ld.so.cache"

_LOADERS = {
    64: ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"),
    32: ("/lib/ld-linux.so.2", "/lib/i386-linux-gnu/ld-linux.so.2"),
}
_MUSL = ("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1")
_NOT_WRITTEN = "{}: {}: the driver's libraries are mounted, and the loader may not find them"
_LIMIT = 1 << 20  # bytes of a text file
_MACHINES = {62: "x86_64", 183: "aarch64", 3: "x86_64"}  # elf(5), e_machine


class Root:
    """A container's root directory, by the descriptor *fd*; what is made there belongs to *uid* and *gid*."""

    __slots__ = ("fd", "gid", "uid")

    def __init__(self, fd: int, uid: int, gid: int) -> None:
        self.fd = fd
        self.uid = uid
        self.gid = gid

    def read(self, path: str, limit: int = _LIMIT) -> bytes | None:
        """The regular file *path*, at most *limit* bytes of it being there; None for anything else."""
        try:
            fd = linux.open_in_root(self.fd, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            stat = os.fstat(fd)
            if stat.st_mode & 0o170000 != 0o100000 or stat.st_size > limit:
                return None
            return read_fd(fd, path, limit)
        except OSError:
            return None
        finally:
            os.close(fd)

    def machine(self, path: str) -> str:
        """The machine of the shared object *path*, empty where it is none."""
        try:
            fd = linux.open_in_root(self.fd, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return ""
        try:
            return _MACHINES.get(linux.elf(fd, path)[1], "other")
        except OSError:
            return ""
        finally:
            os.close(fd)

    def link(self, path: str, target: str) -> None:
        """A symbolic link at *path*, in the place of any file or link there; a directory is Conflict."""
        parent = self._parent(path)
        try:
            name = path.rpartition("/")[2]
            if _points_to(parent, name, target):
                return
            temp = _temporary(name)
            os.symlink(target, temp, dir_fd=parent)
            self._own(temp, parent)
            self._rename(temp, name, parent, path)
        finally:
            os.close(parent)

    def write(self, path: str, data: bytes) -> None:
        """A file with *data* at *path*, mode 0644, in the place of whatever file or link is there."""
        parent = self._parent(path)
        try:
            name = path.rpartition("/")[2]
            temp = _temporary(name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temp, flags, 0o644, dir_fd=parent)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fchown(fd, self.uid, self.gid)
                os.fchmod(fd, 0o644)
            finally:
                os.close(fd)
            self._rename(temp, name, parent, path)
        finally:
            os.close(parent)

    def _parent(self, path: str) -> int:
        """A descriptor of the directory of *path*, made with those above it where it is missing."""
        directory = path.rpartition("/")[0] or "/"
        try:
            return linux.open_in_root(self.fd, directory, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            above = self._parent(directory)
            try:
                name = directory.rpartition("/")[2]
                os.mkdir(name, 0o755, dir_fd=above)
                self._own(name, above)
            finally:
                os.close(above)
        return linux.open_in_root(self.fd, directory, os.O_PATH | os.O_DIRECTORY)

    def _own(self, name: str, parent: int) -> None:
        if (self.uid, self.gid) != (os.geteuid(), os.getegid()):
            os.chown(name, self.uid, self.gid, dir_fd=parent, follow_symlinks=False)

    def _rename(self, temp: str, name: str, parent: int, path: str) -> None:
        try:
            os.rename(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as problem:
            os.unlink(temp, dir_fd=parent)
            if problem.errno != errno.EISDIR:
                raise
            raise Conflict(
                "GS0621",
                f"{path}: is a directory in the image, and a file of the driver belongs there",
                hint="build the image without it",
            ) from problem


def prepare(config: "dict[str, Any]", bundle: str, work: "RootWork") -> list[str]:
    """Do *work* in the root that *config* of the directory *bundle* names; what could not be done and why."""
    path = str((config.get("root") or {}).get("path") or "rootfs")
    path = path if path.startswith("/") else f"{bundle}/{path}"
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        return [_NOT_WRITTEN.format(path, problem.strerror)]
    try:
        found, host = os.fstat(fd), os.stat("/")
        if (found.st_dev, found.st_ino) == (host.st_dev, host.st_ino):
            return [f"{path}: is the root of this host: nothing is written there"]
        linux_ = config.get("linux") or {}
        root = Root(fd, _host_id(linux_.get("uidMappings")), _host_id(linux_.get("gidMappings")))
        return apply(root, work)
    except OSError as problem:
        if problem.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return [_NOT_WRITTEN.format(path, problem.strerror)]
    finally:
        os.close(fd)


def _host_id(mappings: "Any") -> int:
    """The host's id of the container's root user (runtime-spec, config-linux.md, uidMappings)."""
    for one in mappings if isinstance(mappings, list) else ():
        if isinstance(one, dict) and one.get("containerID") == 0 and isinstance(one.get("hostID"), int):
            return int(one["hostID"])
    return 0


def apply(root: Root, work: "RootWork") -> list[str]:
    """Do *work* in *root*; what could not be done there, and why. A second time changes nothing."""
    for path, target in work.links:
        root.link(path, target)
    if not work.libraries:
        return []
    first = _compat(root, work.version) if work.version else []
    sonames = [soname for soname, _, _ in first]
    libraries = first + [one for one in work.libraries if one[0] not in sonames]
    directories = [path.rpartition("/")[0] for _, path, _ in first[:1]] + work.directories
    if any(root.machine(path) for path in _MUSL):
        _tell_musl(root, directories)
        return []
    return _tell_glibc(root, libraries, directories)


def _compat(root: Root, version: str) -> "list[tuple[str, str, int]]":
    from gpushim import cuda_compat

    return [(soname, path, 64) for soname, path in cuda_compat.libraries(root, version)]


def _tell_glibc(root: Root, libraries: "list[tuple[str, str, int]]", directories: list[str]) -> list[str]:
    from gpushim import ldcache

    loaders = {bits: next((m for m in map(root.machine, paths) if m), "") for bits, paths in _LOADERS.items()}
    own = os.uname().machine
    if not any(loaders.values()):
        return ["the image has no dynamic loader: the driver's libraries are there, and nothing finds them"]
    if loaders[64] not in ("", own):
        return [
            f"the image is for another machine ({loaders[64]}): the driver's libraries are of no use in it"
        ]
    data = root.read(CACHE, ldcache.LIMIT)
    added = [
        ldcache.Entry(ldcache.FLAGS[own, bits], soname.encode(), path.encode())
        for soname, path, bits in libraries
        if (own, bits) in ldcache.FLAGS and loaders[bits]
    ]
    gone = _earlier(root) - {entry.path for entry in added}
    try:
        fresh = ldcache.merged(ldcache.parse(data) if data else ldcache.Cache(), added, gone)
    except ValueError as problem:
        return [
            f"{CACHE} of the image {problem}: it is left as it is, and the loader looks where it always does"
        ]
    if fresh is not None:
        root.write(CACHE, fresh)
    # For a later ldconfig in the container, and for the next create to know what it may take out.
    listing = "".join([f"{directory}\n" for directory in directories])
    text = "# Made by gpushim: the NVIDIA driver of the host.\n" + listing
    text += "".join([f"#{path}\n" for _, path, _ in libraries])
    if root.read(DROP_IN) != text.encode():
        root.write(DROP_IN, text.encode())
    return []


def _earlier(root: Root) -> "set[bytes]":
    """The paths that an earlier create put into the cache, as the drop-in tells."""
    text = root.read(DROP_IN) or b""
    return {line[1:] for line in text.splitlines() if line.startswith(b"#/")}


def _tell_musl(root: Root, directories: list[str]) -> None:
    """musl reads the directories of one file, and of none it has defaults (ldso/dynlink.c)."""
    path = f"/etc/ld-musl-{os.uname().machine}.path"
    data = root.read(path)
    there = data.decode("utf-8", "replace").split() if data else ["/lib", "/usr/local/lib", "/usr/lib"]
    missing = [one for one in directories if one not in there]
    if missing:
        root.write(path, "".join([f"{one}\n" for one in there + missing]).encode())


def _points_to(parent: int, name: str, target: str) -> bool:
    try:
        return os.readlink(name, dir_fd=parent) == target
    except OSError:
        return False


def _temporary(name: str) -> str:
    return f".{name}.{os.getpid()}.gpushim"
