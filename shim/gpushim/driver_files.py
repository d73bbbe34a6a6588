"""Which of the driver's files one container is given: mounts, and what is done in its root. Pure."""

from gpushim.edits import AddMount
from gpushim.request import DRIVER_CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.driver import Inventory

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")


class RootWork:
    """What is done in a container's root before it starts: plain data, for whoever has the root.

    `links` are (path, target), `libraries` (SONAME, path, bits) for the loader's cache, and `directories`
    those that a later ldconfig(8) must look into. `version` is the driver's, to compare an image's own
    compatibility libraries with; empty where those are not to be looked at.
    """

    __slots__ = ("directories", "libraries", "links", "version")

    def __init__(self, version: str = "") -> None:
        self.version = version
        self.links: list[tuple[str, str]] = []
        self.libraries: list[tuple[str, str, int]] = []
        self.directories: list[str] = []


class Choice:
    """What of the driver's files a container is given."""

    __slots__ = ("mounts", "warnings", "withheld", "work")

    def __init__(self, work: RootWork) -> None:
        self.mounts: list[AddMount] = []
        self.work = work
        self.withheld: list[tuple[str, str]] = []
        self.warnings: list[str] = []


def choose(
    inventory: "Inventory", capabilities: tuple[str, ...], config: "dict[str, Any]", *, compat: bool
) -> Choice:
    """Mounts and work in the root for *capabilities*; where *config* mounts something itself, that stays.

    *compat*: CUDA's compatibility libraries of the image are taken where they are newer.
    """
    out = Choice(RootWork(inventory.version if compat and "compute" in capabilities else ""))
    covers = _Covers(config)
    left: dict[str, int] = {}
    for path, soname, bits, brings in inventory.libraries:
        why = _why(brings, bits, capabilities)
        if not why:
            _count(left, brings, bits, capabilities)
        elif covers.free(path):
            out.mounts.append(
                AddMount(inventory.root + path, path, _READ_ONLY, f"{DRIVER_CAPABILITIES}: {why}")
            )
            if soname:
                out.work.libraries.append((soname, f"{path.rpartition('/')[0]}/{soname}", bits))
    for path, target, bits, brings in inventory.links:
        if _why(brings, bits, capabilities) and covers.free(path):
            out.work.links.append((path, target))
    out.work.directories = list(dict.fromkeys([path.rpartition("/")[0] for _, path, _ in out.work.libraries]))
    for path, kind, brings in inventory.files:
        why = f"{DRIVER_CAPABILITIES}: {_why(brings, 64, capabilities)}" if brings else "every GPU container"
        if (not brings or _why(brings, 64, capabilities)) and covers.free(path):
            options = _SOCKET if kind == "socket" else _READ_ONLY
            out.mounts.append(AddMount(inventory.root + path, path, options, why))
    out.withheld = [(f"{n} of the driver's libraries", f"they come with {name}") for name, n in left.items()]
    out.warnings = covers.warnings()
    return out


class _Covers:
    """Where a container mounts something: a file of ours there, or in there, would be the volume's."""

    __slots__ = ("_exact", "_left", "_over")

    def __init__(self, config: "dict[str, Any]") -> None:
        mounts = config.get("mounts") or ()
        self._exact = {str(mount.get("destination")).rstrip("/") for mount in mounts}
        # Those that an engine puts into every container hold nothing of a driver's.
        self._over = [one for one in self._exact if one.startswith(("/usr", "/lib", "/etc", "/run", "/tmp"))]
        self._left: dict[str, int] = {}

    def free(self, path: str) -> bool:
        if path in self._exact:
            return False
        for over in self._over:
            if path.startswith(f"{over}/"):
                if not over.startswith(("/run", "/tmp")):
                    self._left[over] = self._left.get(over, 0) + 1
                return over.startswith(("/run", "/tmp"))
        return True

    def warnings(self) -> list[str]:
        return [
            f"the container mounts {over}: {count} of the driver's files would land in there and are left out"
            for over, count in self._left.items()
        ]


def _why(brings: list[str], bits: int, capabilities: tuple[str, ...]) -> str:
    """The capability that brings a file; empty where none does. 32-bit ones take compat32 as well."""
    if bits == 32 and "compat32" not in capabilities:
        return ""
    found = [one for one in brings if one in capabilities]
    if not found:
        return ""
    return f"{found[0]} and compat32" if bits == 32 else found[0]


def _count(left: dict[str, int], brings: list[str], bits: int, capabilities: tuple[str, ...]) -> None:
    name = "compat32" if bits == 32 and any(one in capabilities for one in brings) else brings[0]
    left[name] = left.get(name, 0) + 1
