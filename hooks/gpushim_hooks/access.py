"""More device access for a container that lives already: systemd's unit, the v1 list, the programs of cgroup2."""

import posix as os

from gpushim.errors import Refused
from gpushim_hooks import cgroup, device_lists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.cgroup import Cgroups
    from gpushim_hooks.device_rule import DeviceRule


def allow(pid: int, rules: "list[DeviceRule]") -> list[str]:
    """Have each cgroup that decides on process *pid* allow *rules*; what will not last, or could not be known.

    Refused where one of them cannot be made to.
    """
    if not rules:
        return []
    found = cgroup.find(pid)
    # Before the rest: systemd builds its program, and its v1 list, anew from what it knows.
    warnings = _tell_systemd(found, rules)
    if found.v1:
        _allow_v1(found, pid, rules)
    if found.v2:
        warnings += _allow_v2(found, pid, rules)
    return warnings


def _tell_systemd(found: "Cgroups", rules: "list[DeviceRule]") -> list[str]:
    from gpushim_hooks import systemd

    unit = systemd.unit_of(found.unit)
    if not unit or not systemd.is_running():
        return []
    return systemd.allow(unit, rules)


def _allow_v1(found: "Cgroups", pid: int, rules: "list[DeviceRule]") -> None:
    for directory in found.v1_directories():
        entries = device_lists.read(directory)
        if all(device_lists.allows(entries, rule) for rule in rules):
            continue
        if not cgroup.is_its_own(directory, found.v1_top, pid):
            raise Refused(
                "GS0766",
                f"{directory}: other processes than the container's are in it: no rule is written there",
                hint="use gpushim-runtime, whose rules the runtime sets itself",
            )
        device_lists.allow(directory, rules)


def _allow_v2(found: "Cgroups", pid: int, rules: "list[DeviceRule]") -> list[str]:
    from gpushim_hooks import bpf

    for directory in found.v2_directories():
        if not cgroup.is_its_own(directory, found.v2_top, pid):
            continue
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bpf.widen(fd, rules)
        finally:
            os.close(fd)
    return []
