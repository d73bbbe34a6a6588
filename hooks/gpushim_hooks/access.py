"""More device access for a living container: systemd's unit, the v1 list, the programs of cgroup2."""

import posix as os

from gpushim.errors import Refused
from gpushim_hooks import cgroup, device_lists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.cgroup import Cgroups
    from gpushim_hooks.program import Program
    from gpushim_hooks.rule import Rule


def allow(pid: int, rules: "list[Rule]") -> list[str]:
    """Have each cgroup that decides on process *pid* allow *rules*; what will not last, or is not known.

    Refused or Blocked where one of them cannot be made to.
    """
    if not rules:
        return []
    found = cgroup.find(pid)
    # Before the rest: systemd builds its program, and its v1 list, anew from what it knows.
    warnings = _tell_systemd(found, pid, rules)
    if found.v1:
        _allow_v1(found, pid, rules)
    if found.v2:
        warnings += _allow_v2(found, pid, rules)
    return warnings


def _tell_systemd(found: "Cgroups", pid: int, rules: "list[Rule]") -> list[str]:
    from gpushim_hooks import systemd

    unit = systemd.unit_of(found.unit)
    if not unit or not systemd.is_running():
        return []
    # The engine's own service, say, is not the container's to widen.
    directory = found.unit_top + found.unit[: found.unit.rindex(unit) + len(unit)]
    return systemd.allow(unit, rules) if cgroup.is_its_own(directory, found.unit_top, pid) else []


def _allow_v1(found: "Cgroups", pid: int, rules: "list[Rule]") -> None:
    for directory in found.v1_directories():
        entries = device_lists.read(directory)
        if all(device_lists.allows(entries, rule) for rule in rules):
            continue
        if not cgroup.is_its_own(directory, found.v1_top, pid):
            raise _shared(directory, "GS0766")
        device_lists.allow(directory, rules)


def _allow_v2(found: "Cgroups", pid: int, rules: "list[Rule]") -> list[str]:
    from gpushim_hooks import bpf, program

    warnings = []
    for directory in found.v2_directories():
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            own = program.attached(fd)
            if not own:
                continue
            if not cgroup.is_its_own(directory, found.v2_top, pid):
                if _is_denied(own, rules):
                    raise _shared(directory, "GS0769")
                continue
            obstacles = bpf.widen(fd, rules).obstacles
            # A program above it whose answer nobody can know may well allow; anything else denies.
            if obstacles and (
                _is_denied(program.effective(fd), rules) or not _is_known(program.attached(fd))
            ):
                raise obstacles[0]
            warnings += [str(obstacle) for obstacle in obstacles]
        finally:
            os.close(fd)
    return warnings


def _is_denied(programs: "list[Program]", rules: "list[Rule]") -> bool:
    return any(
        one.answer((rule.type, rule.major, minor, access)) is False
        for one in programs
        for rule in rules
        for access in rule.asked()
        for minor in (rule.first, rule.last)
    )


def _is_known(programs: "list[Program]") -> bool:
    return all(one.instructions is not None for one in programs)


def _shared(directory: str, id: str) -> Refused:
    return Refused(
        id,
        f"{directory}: other processes than the container's are in it: no rule is written there",
        hint="use gpushim-runtime, whose rules the runtime sets itself",
    )
