"""What a container's real device cgroup answers, and which list or program denies."""

import os
from pathlib import Path
from typing import NamedTuple

from gpushim.errors import Blocked, UnknownContainer
from gpushim.rules import Rules
from gpushim_hooks import cgroup, device_lists, program
from gpushim_hooks.program import Program


class Answer(NamedTuple):
    """Whether one access is allowed, None where that is not known; *why*: who denies, or what is unknown."""

    allowed: bool | None
    why: str = ""


class CgroupView:
    """The cgroups of one process, or one directory, read once.

    `programs` are those of the cgroup2 directory and of each above it, with the directory; *rules* those of
    the container's config, which speak where a v1 list cannot.
    """

    def __init__(self, v1: str, v2: str, top: str, rules: Rules | None = None) -> None:
        self.v1 = v1
        self.v2 = v2
        self.rules = rules
        self.entries = ""
        self.programs: list[tuple[str, Program]] = []
        self.unread: list[str] = []
        if v1:
            try:
                self.entries = device_lists.read(v1)
            except OSError as problem:
                self.unread.append(f"{v1}: {problem.strerror}")
        for directory in _upwards(v2, top):
            self._read(directory)

    def _read(self, directory: str) -> None:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as problem:
            self.unread.append(f"{directory}: {problem.strerror}")
            return
        try:
            self.programs += [(directory, one) for one in program.attached(fd)]
        except Blocked as problem:
            self.unread.append(str(problem.args[0]))
        finally:
            os.close(fd)

    def ask(self, major: int, minor: int, letter: str) -> Answer:
        """Whether *letter* (r, w or m) to the character device *major*:*minor* goes through everywhere."""
        answers = [self._ask_v1(major, minor, letter)] if self.v1 else []
        answers += [_ask_program(where, one, major, minor, letter) for where, one in self.programs]
        for answer in answers:
            if answer.allowed is False:
                return answer
        if self.unread:
            return Answer(None, self.unread[0])
        return next((answer for answer in answers if answer.allowed is None), Answer(True))

    def _ask_v1(self, major: int, minor: int, letter: str) -> Answer:
        if not self.entries:
            return Answer(None, f"{self.v1}/devices.list is empty or cannot be read")
        allowed = device_lists.answer(self.entries, major, minor, letter)
        if allowed is False:
            return Answer(False, f"{self.v1}/devices.list has no line for it")
        if allowed is None and self.rules is not None and self.rules.allow(major, minor, letter):
            return Answer(True)  # allowed by default, and no rule of the config takes it away
        if allowed is None:
            return Answer(None, f"{self.v1} allows by default, and does not list what it denies")
        return Answer(True)


def of_process(pid: int, rules: Rules | None) -> CgroupView:
    """The cgroups of *pid*."""
    found = cgroup.find(pid)
    # Of a unit, where systemd left the first process elsewhere, what each later process finds.
    v1 = found.v1_directories()[-1] if found.v1 else ""
    return CgroupView(v1, found.v2, found.v2_top, rules)


def of_directory(path: str) -> CgroupView:
    """The cgroup *path*, a directory, or as /proc/PID/cgroup has it; UnknownContainer where it is none."""
    mine = cgroup.find(os.getpid())
    for base in ("", mine.v1_top, mine.v2_top):
        directory = Path(base + path)
        if base == "" and not any(
            top and str(directory).startswith(top) for top in (mine.v1_top, mine.v2_top)
        ):
            continue
        if (directory / "devices.list").exists():
            return CgroupView(str(directory), "", "")
        if mine.v2_top and str(directory).startswith(mine.v2_top) and (directory / "cgroup.procs").exists():
            return CgroupView("", str(directory), mine.v2_top)
    raise UnknownContainer(
        "GS0812",
        f"{path}: is no device cgroup",
        hint="a directory below /sys/fs/cgroup, or a path as /proc/PID/cgroup has it",
    )


def _ask_program(where: str, one: Program, major: int, minor: int, letter: str) -> Answer:
    allowed = one.answer(("c", major, minor, letter))
    if allowed is None:
        return Answer(
            None, f"{one.describe()} of {where}: {one.why or 'it is of a kind that is not understood'}"
        )
    return Answer(allowed, "" if allowed else f"{one.describe()} of {where}")


def _upwards(directory: str, top: str) -> list[str]:
    """*directory* and those above it, up to *top*; nothing where there is none."""
    out = [directory] if directory else []
    while out and len(out[-1]) > len(top) and "/" in out[-1][len(top) :]:
        out.append(out[-1].rpartition("/")[0])
    return out
