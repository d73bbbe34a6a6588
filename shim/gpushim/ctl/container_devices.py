"""The NVIDIA devices of a running container: what it was to have, what is there, what it can open."""

import os
import stat
from pathlib import Path
from typing import Any

from gpushim import bundle, linux, node, records
from gpushim.ctl import cgroup_view
from gpushim.ctl.cgroup_view import Answer, CgroupView
from gpushim.ctl.containers import Running
from gpushim.ctl.prepare import all_devices
from gpushim.ctl.process_user import ProcessUser
from gpushim.errors import ShimError, UnknownDevice
from gpushim.resolution import resolve
from gpushim.rules import Rules

_LETTERS = "rwm"
_ST_NODEV = 4  # statvfs(3)


class Wanted:
    """One device to be looked at: *access* is what it was to give, empty where nobody asked for it."""

    def __init__(self, path: str, major: int, minor: int, access: str = "", by: str = "") -> None:
        self.path = path
        self.major = major
        self.minor = minor
        self.access = access
        self.by = by  # record, config, option; empty for what is just there


class View:
    """A running container, or a bare cgroup (*running* is None), and what is known of it."""

    def __init__(
        self, running: Running | None, settings: dict[str, Any], state_dir: str, cgroup: str = ""
    ) -> None:
        self.running = running
        self.warnings: list[str] = []
        self.wanted: dict[str, Wanted] = {}
        self.root = -1
        self.user: ProcessUser | None = None
        config = self._config()
        if running is not None:
            self._open(running.pid)
            self._take_record(state_dir)
            if config is not None and not self.wanted:
                self._take_config(config, settings, state_dir)
            rules = _rules(config) if config is not None else None
            self.cgroup: CgroupView = cgroup_view.of_process(running.pid, rules)
        else:
            self.cgroup = cgroup_view.of_directory(cgroup)
        self._take_there(settings, state_dir)

    def _open(self, pid: int) -> None:
        """Look into the container; what may not be looked at stays unknown."""
        try:
            self.root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
            self.user = ProcessUser(pid)
        except PermissionError as problem:
            self.warnings.append(f"{problem.filename}: {problem.strerror}: the nodes in there are not known")

    def _config(self) -> dict[str, Any] | None:
        if self.running is None or not self.running.bundle:
            return None
        try:
            return bundle.open_bundle(self.running.bundle).config
        except (ShimError, OSError) as problem:
            self.warnings.append(
                f"{self.running.bundle}: {problem}: what the container asks for is not known"
            )
            return None

    def add(self, path: str, major: int, minor: int, access: str, by: str) -> None:
        self.wanted.setdefault(path, Wanted(path, major, minor, access, by))

    def _take_record(self, state_dir: str) -> None:
        assert self.running is not None
        for one in records.read_all(state_dir):
            if one["id"] == self.running.id and one["bundle"] in ("", self.running.bundle or one["bundle"]):
                for path, major, minor, access in one["devices"]:
                    self.add(path, major, minor, access, "record")

    def _take_config(self, config: dict[str, Any], settings: dict[str, Any], state_dir: str) -> None:
        """What the shim would give: under another runtime there is no record, and the question is that."""
        try:
            resolution = resolve(config, settings, "", state_dir, live=True)
        except ShimError as problem:
            self.warnings.append(f"{problem.id}: {problem.args[0]}")
            return
        if resolution.selection is not None:
            for one in resolution.selection.devices:
                self.add(one.path, one.major, one.minor, one.access, "config")

    def _take_there(self, settings: dict[str, Any], state_dir: str) -> None:
        """What nobody asked for and is there all the same; of a bare cgroup every device of this node."""
        found = node.read_node(settings, state_dir, patient=False)
        if found is None:
            self.warnings.append("no NVIDIA driver is loaded: which majors are NVIDIA's is not known")
        elif self.user is None:
            node.read_capabilities(found, management=True)
            for one in all_devices(found):
                self.add(one.path, one.major, one.minor, "", "")
        else:
            majors = {found.gpu_major(), *[n for name, n in found.majors.items() if "nvidia" in name]}
            for path in self._listed():
                numbers = self._numbers(path)
                if numbers is not None and numbers[0] in majors:
                    self.add(path, *numbers, "", "")

    def _listed(self) -> list[str]:
        """Paths below the container's /dev that may be NVIDIA's."""
        out = []
        for directory in ("/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"):
            try:
                fd = linux.open_in_root(self.root, directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                names = os.listdir(fd)
            finally:
                os.close(fd)
            out += [
                f"{directory}/{name}"
                for name in sorted(names)[:10_000]
                if "nvidia" in name or name[:7] == "channel"
            ]
        return out

    def _numbers(self, path: str) -> tuple[int, int] | None:
        found = self._stat(path)
        if found is None or not stat.S_ISCHR(found[0].st_mode):
            return None
        return os.major(found[0].st_rdev), os.minor(found[0].st_rdev)

    def _stat(self, path: str) -> tuple[os.stat_result, bool] | None:
        """The file *path* of the container, its own links followed, and whether devices open there."""
        try:
            fd = linux.open_in_root(self.root, path, os.O_PATH)
        except OSError:
            return None
        try:
            return os.fstat(fd), not os.fstatvfs(fd).f_flag & _ST_NODEV
        finally:
            os.close(fd)

    def rows(self) -> list[dict[str, Any]]:
        """What docs/devices.md says of each device, those asked for first."""
        order = sorted(self.wanted.values(), key=lambda one: not one.access)
        return [self._row(one) for one in order]

    def _row(self, one: Wanted) -> dict[str, Any]:
        answers = {letter: self.cgroup.ask(one.major, one.minor, letter) for letter in _LETTERS}
        row: dict[str, Any] = {
            "path": one.path,
            "major": one.major,
            "minor": one.minor,
            "asked": one.access or None,
            "asked_by": one.by or None,
            "node": "unknown",
            "mode": None,
            "uid": None,
            "gid": None,
            "cgroup": {letter: answer.allowed for letter, answer in answers.items()},
            "denied_by": _why(answers, one.access),
            "user": {"r": None, "w": None},
        }
        if self.user is not None:
            self._look_at_node(one, row)
        row["opens"] = _opens(one, row)
        row["lost"] = one.by == "record" and row["opens"] is False
        return row

    def _look_at_node(self, one: Wanted, row: dict[str, Any]) -> None:
        found = self._stat(one.path)
        if found is None:
            row["node"] = "missing"
            return
        file, devices = found
        numbers = (os.major(file.st_rdev), os.minor(file.st_rdev))
        if not stat.S_ISCHR(file.st_mode):
            row["node"] = "no device"
        elif numbers != (one.major, one.minor):
            row["node"] = f"{numbers[0]}:{numbers[1]}"
        else:
            row["node"] = "present" if devices else "nodev"
        assert self.user is not None  # it was opened together with the root
        row["mode"] = stat.S_IMODE(file.st_mode)
        row["uid"], row["gid"] = self.user.inside(file)
        row["user"] = {letter: self.user.may(file, letter) for letter in "rw"}


def _opens(one: Wanted, row: dict[str, Any]) -> bool | None:
    """Whether a process of the container can open it as asked; None where that is not known."""
    letters = [letter for letter in (one.access or "r") if letter in "rw"]
    parts = [row["cgroup"][letter] for letter in letters]
    if row["node"] != "unknown":
        parts += [row["node"] == "present"] + [row["user"][letter] for letter in letters]
    if False in parts:
        return False
    return None if None in parts else True


def _why(answers: dict[str, Answer], access: str) -> str | None:
    """Who denies something that was asked for, else something at all, else what is not known."""
    asked = [answers[letter] for letter in access]
    for group in (asked, list(answers.values())):
        for allowed in (False, None):
            for answer in group:
                if answer.allowed is allowed:
                    return answer.why
    return None


def _rules(config: dict[str, Any]) -> Rules:
    listed = ((config.get("linux") or {}).get("resources") or {}).get("devices") or []
    return Rules(listed, default=False)


def host_device(text: str) -> tuple[str, int, int, str]:
    """Path, numbers and access of `PATH[:ACCESS]`, a device of this host; UnknownDevice where it is none."""
    path, colon, access = text.rpartition(":")
    if not colon or not access or set(access) - set(_LETTERS):
        path, access = text, "rw"
    try:
        found = Path(path).stat()
    except OSError as problem:
        raise UnknownDevice(
            "GS0813", f"{path}: {problem.strerror}", hint="--device /dev/NAME or /dev/NAME:rw"
        ) from problem
    if not stat.S_ISCHR(found.st_mode):
        raise UnknownDevice("GS0814", f"{path}: is no character device of this host")
    return path, os.major(found.st_rdev), os.minor(found.st_rdev), access
