"""systemd's view of a container's devices: a unit's DeviceAllow, out of which it builds its filter anew.

It does so at daemon-reload, daemon-reexec and at any property that is set; what it was not told is lost then.
Source: org.freedesktop.systemd1(5); systemd.resource-control(5), DeviceAllow=; systemd src/core/cgroup.c.
"""

import posix as os

from gpushim import files
from gpushim_hooks.dbus import Connection, DBusError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim_hooks.rule import Rule

# systemd's own socket, for root, and the bus, where that one is closed to us. Each with the name of the peer.
PEERS = (("/run/systemd/private", ""), ("/run/dbus/system_bus_socket", "org.freedesktop.systemd1"))

_DEADLINE = 2.0  # seconds: a systemd that is busy must not hold a container
_MANAGER = "org.freedesktop.systemd1.Manager"
_TOP = "/org/freedesktop/systemd1"


class Unit:
    """What systemd knows of the devices of one unit.

    `policy` is its DevicePolicy, `allowed` its DeviceAllow as (path or group, access), `pinned` the paths of
    BPF programs that it attaches from bpffs.
    """

    __slots__ = ("allowed", "name", "pinned", "policy")

    def __init__(self, name: str, policy: str, allowed: list[tuple[str, str]], pinned: list[str]) -> None:
        self.name = name
        self.policy = policy
        self.allowed = allowed
        self.pinned = pinned

    @property
    def filters(self) -> bool:
        """Whether systemd filters this unit's devices: a rule for one that is free would close the rest."""
        return self.policy != "auto" or bool(self.allowed)

    def lacks(self, path: str, access: str) -> bool:
        return not any(one == path and set(access) <= set(letters) for one, letters in self.allowed)

    def together(self, path: str, access: str) -> str:
        """*access* with what *path* has: systemd keeps one entry of a path, the last."""
        known = "".join([letters for one, letters in self.allowed if one == path])
        return "".join([letter for letter in "rwm" if letter in access + known])


def is_running() -> bool:
    """Whether systemd runs this host (sd_booted(3)) as seen from here."""
    try:
        os.stat("/run/systemd/system")
    except OSError:
        return False
    return True


def unit_of(path: str) -> str:
    """The unit that the cgroup *path* is of: its innermost scope or service; empty where there is none."""
    for part in reversed(path.split("/")):
        if part.endswith((".scope", ".service")):
            return part
    return ""


def read_unit(name: str) -> Unit:
    """What systemd knows of the unit *name*; DBusError or OSError where it does not say."""
    connection = _connect()
    try:
        return _read(connection, name)
    finally:
        connection.close()


def allow(name: str, rules: "list[Rule]") -> list[str]:
    """Have the unit *name* allow *rules* for as long as it runs; what will be lost at a reload, and why."""
    try:
        connection = _connect()
        try:
            unit = _read(connection, name)
            missing, warnings = _missing(unit, rules) if unit.filters else ([], [])
            if missing:
                properties = [("DeviceAllow", ("a(ss)", missing))]
                connection.call(_TOP, _MANAGER, "SetUnitProperties", "sba(sv)", [name, True, properties])
        finally:
            connection.close()
    except (DBusError, OSError) as problem:
        return [f"{name}: systemd was not told ({problem}): the access is lost at its next daemon-reload"]
    return warnings + [
        f"{name}: the runtime has pinned its device program at {path}: systemd attaches it anew at its next "
        "daemon-reload, and the access is lost then"
        for path in unit.pinned
    ]


def _missing(unit: Unit, rules: "list[Rule]") -> tuple[list[tuple[str, str]], list[str]]:
    """The entries that DeviceAllow of *unit* lacks, and a sentence for each rule that it cannot have."""
    missing: list[tuple[str, str]] = []
    warnings = []
    for rule in rules:
        for minor in rule.minors():
            # By numbers: since systemd 240 it reads them from the path, and the node need not be there.
            path = f"/dev/char/{rule.major}:{minor}" if minor is not None else f"char-{_group(rule.major)}"
            if path == "char-":
                warnings.append(
                    f"{unit.name}: any minor of major {rule.major} cannot be told to systemd, since "
                    "/proc/devices has no name for it: the access is lost at its next daemon-reload"
                )
            elif unit.lacks(path, rule.access):
                missing.append((path, unit.together(path, rule.access)))
    return missing, warnings


def _group(major: int) -> str:
    """The name of the character *major* in /proc/devices, by which systemd takes all of its minors."""
    characters = files.read("/proc/devices").decode("ascii", "replace").partition("Block devices:")[0]
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if number == str(major):
            return name
    return ""


def _connect() -> Connection:
    (private, nobody), (bus, peer) = PEERS
    try:
        return Connection(private, _DEADLINE, destination=nobody)
    except TimeoutError:
        raise  # it is there and busy: the bus leads to the same
    except (DBusError, OSError):
        return Connection(bus, _DEADLINE, destination=peer)


def _read(connection: Connection, name: str) -> Unit:
    kind = "Scope" if name.endswith(".scope") else "Service"

    def value(property: str) -> "Any":
        body = [f"org.freedesktop.systemd1.{kind}", property]
        return connection.call(_path(name), "org.freedesktop.DBus.Properties", "Get", "ss", body)[0]

    policy, allowed = value("DevicePolicy"), value("DeviceAllow")
    try:
        programs = value("BPFProgram")
    except DBusError:
        programs = []  # systemd before 249
    if not isinstance(policy, str) or not _is_pairs(allowed) or not _is_pairs(programs):
        raise DBusError(f"{name}: what systemd says of its devices is of no known type")
    return Unit(name, policy, allowed, [path for kind, path in programs if kind == "device"])


def _is_pairs(value: "Any") -> bool:
    return isinstance(value, list) and all(
        isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], str)
        for one in value
    )


def _path(name: str) -> str:
    """The object of a unit: what is no letter or digit is spelt out (sd_bus_path_encode(3))."""
    out = []
    for n, byte in enumerate(name.encode("utf-8", "surrogateescape")):
        one = chr(byte)
        plain = one.isascii() and (one.isalpha() or (one.isdigit() and n > 0))
        out.append(one if plain else f"_{byte:02x}")
    return f"{_TOP}/unit/{''.join(out)}"
