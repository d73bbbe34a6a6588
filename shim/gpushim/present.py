"""What a config has already: device nodes, rules, bind mounts, groups. Pure."""

from gpushim.errors import Conflict
from gpushim.rules import Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.selection import Device


class Present:
    """What a config has already: devices by path, bind mounts, rules."""

    __slots__ = ("_devices", "_groups", "_mounted", "_mounts", "_rules")

    def __init__(self, config: "dict[str, Any]", *, crun: bool) -> None:
        linux = config.get("linux") or {}
        self._devices = {_clean(d.get("path")): d for d in linux.get("devices") or ()}
        mounts = [(_clean(m.get("destination")), _is_bind(m)) for m in config.get("mounts") or ()]
        self._mounted = {destination for destination, _ in mounts}
        # Our nodes are all below /dev: what lies elsewhere covers none of them.
        self._mounts = [one for one in mounts if one[0] == "/dev" or one[0].startswith("/dev/")]
        rules = (linux.get("resources") or {}).get("devices") or []
        self._rules = Rules(rules, default=crun and not rules)
        user = (config.get("process") or {}).get("user") or {}
        self._groups = {user.get("gid"), *(user.get("additionalGids") or ())}

    def lacks(self, device: "Device") -> bool:
        """Whether there is no node at the device's path; Conflict when there is one of another device."""
        there = self._devices.get(device.path)
        if there is None:
            return True
        numbers = (there.get("major"), there.get("minor"))
        if there.get("type") in ("c", "u") and numbers == (device.major, device.minor):
            return False
        raise Conflict(
            "GS0601",
            f"linux.devices: {device.path} is {there.get('type')} {numbers[0]}:{numbers[1]} already, "
            f"and on this node it is c {device.major}:{device.minor}",
            hint="take the entry out of what made this config: its numbers are stale",
        )

    def denies(self, major: int, minor: "int | None", access: str) -> bool:
        """Whether a rule is needed; it counts as given from here on."""
        if self._rules.allow(major, minor, access):
            return False
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": access}
        self._rules.add(rule)
        return True

    def cover(self, path: str) -> str:
        """Where the bind mount is that lies over *path*; empty where what lies there is the container's."""
        out = ""
        for destination, bind in self._mounts:
            if path == destination or path.startswith(destination + "/"):
                out = destination if bind else ""
        return out

    def mounts_nothing_at(self, path: str) -> bool:
        return path not in self._mounted

    def lacks_group(self, gid: int) -> bool:
        """Whether the process is not in the group *gid*; it counts as given from here on."""
        if gid in self._groups:
            return False
        self._groups.add(gid)
        return True


def _clean(path: "Any") -> str:
    if not isinstance(path, str):
        return ""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")])


def _is_bind(mount: "dict[str, Any]") -> bool:
    options = mount.get("options") or ()
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options
