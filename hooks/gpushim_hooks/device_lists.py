"""The `devices` controller of cgroup v1: what a cgroup allows, and allowing more.

Source: kernel Documentation/admin-guide/cgroup-v1/devices.rst and security/device_cgroup.c.
"""

import posix as os

from gpushim import files
from gpushim.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim_hooks.rule import Rule


def answer(entries: str, major: int, minor: "int | None", access: str) -> "bool | None":
    """Whether *entries*, the text of devices.list, allow all of *access* to character device *major*:*minor*.

    None where that cannot be known: a cgroup that allows by default prints `a *:* rwm` whatever it denies.
    *minor* None asks for every minor.
    """
    for line in entries.splitlines():
        kind, numbers, letters = line.split()
        if kind == "a":
            return None
        first, _, second = numbers.partition(":")
        # One entry must cover all that is asked: match_exception() looks at them one by one.
        covers = second == "*" or (minor is not None and second == str(minor))
        if kind == "c" and first in ("*", str(major)) and covers and set(access) <= set(letters):
            return True
    return False


def allows(entries: str, rule: "Rule") -> bool:
    """Whether nothing is to be written for *rule*."""
    return all(answer(entries, rule.major, minor, rule.access) is not False for minor in rule.minors())


def allow(directory: str, rules: "list[Rule]") -> None:
    """Have the cgroup *directory* allow *rules*; Refused where the kernel or the cgroup above it does not."""
    for rule in rules:
        for minor in rule.minors():
            if answer(read(directory), rule.major, minor, rule.access) is not False:
                continue
            _write(directory, rule.major, minor, rule.access)
            if answer(read(directory), rule.major, minor, rule.access) is False:
                raise Refused("GS0765", f"{directory}/devices.allow: took a rule and does not list it")


def read(directory: str) -> str:
    return files.read(f"{directory}/devices.list").decode("ascii")


def _write(directory: str, major: int, minor: "int | None", access: str) -> None:
    rule = f"c {major}:{'*' if minor is None else minor} {access}"
    path = f"{directory}/devices.allow"
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # One rule a write: of a second one in it the kernel takes nothing, and says that it did.
        os.write(fd, rule.encode("ascii"))
    except PermissionError as problem:
        raise Refused(
            "GS0764",
            f"{path}: {rule}: the kernel refuses it",
            hint="the cgroup above does not allow it (an engine in a container?), or CAP_SYS_ADMIN lacks",
        ) from problem
    finally:
        os.close(fd)
