"""Where the device access of a living container is decided: its directories of cgroup v1 and cgroup2.

A v1 `devices` hierarchy and the programs of cgroup2 may both be in force on one host (hybrid), and then both
must allow. Sources: cgroups(7), proc_pid_cgroup(5), proc_pid_mountinfo(5).
"""

import posix as os

from gpushim import files
from gpushim.errors import InvalidState

_PROCESSES = 10_000  # that are looked at in one cgroup
_CGROUPS = 1_000  # that are looked at below one


class Cgroups:
    """The directories of one process, as seen from here; empty where no such hierarchy is mounted.

    `v1` is of the `devices` controller, `v2` of cgroup2, and `unit` the path that systemd knows, below
    `unit_top`.
    """

    __slots__ = ("unit", "unit_top", "v1", "v1_top", "v2", "v2_top")

    def __init__(self) -> None:
        self.v1 = self.v1_top = ""
        self.v2 = self.v2_top = ""
        self.unit = self.unit_top = ""

    def v1_directories(self) -> list[str]:
        """The process's own and its unit's, the last the one where later processes of the container start.

        crun makes a cgroup below its unit's. And systemd leaves a process in a slice of whose devices it does
        not know yet, while runc has made the unit's directory and starts all later processes there.
        """
        unit = self.v1_top + self.unit
        if unit == self.v1 or not self.unit.endswith((".scope", ".service")) or not _is_directory(unit):
            return [self.v1]
        return [unit, self.v1] if self.v1.startswith(f"{unit}/") else [self.v1, unit]

    def v2_directories(self) -> list[str]:
        """From its unit's down to the process's own: crun makes one below its scope."""
        out = [self.v2]
        while not out[-1].endswith((".scope", ".service")) and len(out[-1]) > len(self.v2_top):
            out.append(out[-1].rpartition("/")[0])
        return out[::-1] if out[-1].endswith((".scope", ".service")) else [self.v2]


def find(pid: int) -> Cgroups:
    """The cgroups of process *pid*; InvalidState where they lie outside of what this process may see."""
    paths = {}
    for line in files.read(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path.removesuffix(" (deleted)")
    out = Cgroups()
    named = "name=systemd" if paths.get("", "/") == "/" else ""
    out.unit = paths.get(named, "")
    # /proc/PID/cgroup names every hierarchy that the kernel has; only one that is mounted can be looked at.
    for root, top, kind, options in _mounts():
        if kind == ("cgroup" if named else "cgroup2") and (not named or named in options):
            out.unit_top = top
        if kind == "cgroup" and "devices" in options and "devices" in paths:
            out.v1, out.v1_top = _join(top, root, paths["devices"]), top
        elif kind == "cgroup2" and "" in paths:
            out.v2, out.v2_top = _join(top, root, paths[""]), top
    return out


def is_its_own(directory: str, top: str, pid: int) -> bool:
    """Whether *directory*, with what is below it, holds only processes of the container that *pid* is of.

    The container's mount namespace tells them: also one that shares the host's processes has its own. systemd
    leaves containers in a shared slice where it does not manage the devices controller, and an engine without
    systemd makes their cgroups below its own service's.
    """
    if directory == top or directory.endswith(".slice"):
        return False
    return _is_alone(directory, _namespace(pid), [_CGROUPS])


def _is_alone(directory: str, own: int, left: list[int]) -> bool:
    left[0] -= 1
    try:
        listed = files.read(f"{directory}/cgroup.procs").split()
        below = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return False  # EOPNOTSUPP of a threaded one: the domain above it is whose nobody here can tell
    if left[0] < 0 or len(listed) > _PROCESSES or not all(_namespace(int(one)) in (own, 0) for one in listed):
        return False
    return all(_is_alone(path, own, left) for path in below)


def _is_directory(path: str) -> bool:
    try:
        return os.stat(path).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def _namespace(pid: int) -> int:
    """The inode of the mount namespace of *pid*, 0 where the process is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def _mounts() -> list[tuple[str, str, str, list[str]]]:
    """Root, mount point, type and super options of each cgroup mount, the last over the first."""
    out = []
    for line in files.read("/proc/self/mountinfo", 32 << 20).decode("utf-8", "surrogateescape").splitlines():
        ours, _, its = line.partition(" - ")
        if its.startswith("cgroup"):
            words, rest = ours.split(), its.split()
            out.append((_unescaped(words[3]), _unescaped(words[4]), rest[0], rest[2].split(",")))
    return out


def _unescaped(path: str) -> str:
    for escape, meant in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escape, meant)
    return path


def _join(top: str, root: str, path: str) -> str:
    root = root.rstrip("/")
    if path.startswith("/..") or not (path == root or path.startswith(root + "/")):
        raise InvalidState(
            "GS0763",
            f"cgroup {path}: lies outside of what is mounted here at {top}",
            hint="this process lives in a cgroup namespace of its own; start the engine in the host's",
        )
    return top.rstrip("/") + path[len(root) :].rstrip("/")
