"""A container that lives already, held so that neither its process nor its root can become another's."""

import posix as os

from gpushim.errors import InvalidState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Container:
    """One process of a container, and where its root is.

    `ns` is a descriptor of its mount namespace. `root` is the path of its root directory before
    pivot_root(2), and `device` and `inode` are what that directory has wherever it is seen from.
    """

    __slots__ = ("device", "inode", "ns", "pid", "pidfd", "root")

    def __init__(self, pid: int, pidfd: int, ns: int, root: str) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.ns = ns
        self.root = root
        self.device, self.inode = _identity(root)

    def ids(self, uid: int, gid: int) -> tuple[int, int]:
        """The host's ids of *uid* and *gid* of the container; InvalidState where they have none."""
        return _outside(self.pid, "uid_map", uid), _outside(self.pid, "gid_map", gid)

    def check_alive(self) -> None:
        """InvalidState where the process is gone: what was read of it since may be another's."""
        from _signal import pidfd_send_signal

        try:
            pidfd_send_signal(self.pidfd, 0)
        except ProcessLookupError as problem:
            raise _gone(self.pid) from problem


class Inside:
    """As Container, for a process that is in the container's namespaces already."""

    __slots__ = ("device", "inode", "ns", "pid", "root")

    def __init__(self, root: str) -> None:
        self.pid = os.getpid()
        self.ns = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.root = root
        self.device, self.inode = _identity(root)

    def ids(self, uid: int, gid: int) -> tuple[int, int]:
        return uid, gid

    def check_alive(self) -> None:
        pass


def open_container(pid: int, config: "dict[str, Any]", bundle: str) -> Container:
    """The container whose init is *pid* and whose root *config* of the directory *bundle* names.

    InvalidState where there is no such process, where it is one of the host's, or where the root is the
    host's own.
    """
    try:
        pidfd = os.pidfd_open(pid)
        ns = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except (ProcessLookupError, FileNotFoundError) as problem:
        raise _gone(pid) from problem
    if os.fstat(ns).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
        raise InvalidState(
            "GS0756",
            f"process {pid} is in the mount namespace of this host: nothing may be put there",
            hint="the container has ended and its number is another's, or it has no mount namespace",
        )
    container = Container(pid, pidfd, ns, root_of(config, bundle))
    host = os.stat("/")
    if (container.device, container.inode) == (host.st_dev, host.st_ino):
        raise InvalidState("GS0757", f"{container.root}: is the root of this host: nothing may be put there")
    return container


def root_of(config: "dict[str, Any]", bundle: str) -> str:
    """The path of the root directory, which may be relative to *bundle* (runtime-spec, config.md, "Root")."""
    path = (config.get("root") or {}).get("path")
    if not isinstance(path, str) or not path:
        raise InvalidState("GS0758", f"{bundle}/config.json: root.path: names no directory")
    return path if path.startswith("/") else f"{bundle}/{path}"


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _gone(pid: int) -> InvalidState:
    return InvalidState("GS0755", f"process {pid}: is gone: there is no container to give anything to")


def _outside(pid: int, name: str, inside: int) -> int:
    """What *inside* is in the first user namespace (user_namespaces(7), "uid_map")."""
    from gpushim import files

    path = f"/proc/{pid}/{name}"
    for line in files.read(path).decode("ascii").splitlines():
        first, outside, count = [int(word) for word in line.split()]
        if first <= inside < first + count:
            return outside + inside - first
    raise InvalidState("GS0759", f"{path}: {inside} is mapped to no id of this host")
