"""The driver's files on this host, by what brings them: built once, and kept while nothing has changed."""

import posix as os
import time

from gpushim import files, state
from gpushim.errors import InvalidNode
from gpushim.json_text import decode, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CACHE = "driver.json"
# Seconds: a directory that has just changed may change again, as when a driver container is copying.
_SETTLED = 2.0

# What daemons listen at, and MPS's directory of pipes: they come and go, so they are looked at each time.
SOCKETS = {
    "/run/nvidia-persistenced/socket": "utility",
    "/run/nvidia-fabricmanager/socket": "utility",
    "/tmp/nvidia-mps": "compute",
}


class Inventory:
    """The files of one driver, each with the capabilities that bring it; paths are below `root`.

    `libraries` are [path, SONAME, bits, capabilities], `links` [path, target, bits, capabilities], `files`
    [path, kind, capabilities] with kind binary, socket, firmware or configuration; firmware comes with any.
    `cuda` is the CUDA version of its libcuda, empty where that does not tell.
    """

    __slots__ = ("cuda", "files", "libraries", "links", "root", "version")

    def __init__(self, root: str, found: "dict[str, Any]") -> None:
        self.root = root
        self.version: str = found["version"]
        self.cuda: str = found["cuda"]
        self.libraries: list[tuple[str, str, int, list[str]]] = found["libraries"]
        self.links: list[tuple[str, str, int, list[str]]] = found["links"]
        self.files: list[tuple[str, str, list[str]]] = found["files"] + _sockets(root)


def read_driver(settings: "dict[str, Any]", state_dir: str) -> "Inventory | None":
    """The driver's files; None where this host has none. InvalidNode where they are of another version."""
    root = settings["gpushim.roots.driver"].rstrip("/")
    version = driver_version(settings["gpushim.roots.proc"])
    if version is None:
        return None
    found = _kept(root, version, state_dir)
    if found is None:
        from gpushim.driver_inventory import inventory

        found = inventory(root, version)
        identity = _identity(root, found["directories"])
        newest = max([mtime for _, _, mtime in identity], default=0)
        if time.time() - newest / 1e9 > _SETTLED:
            kept = {"root": root, "identity": identity, "found": found}
            state.keep(state_dir, CACHE, dumps(kept).encode("ascii"))
    if found["libraries"]:
        return Inventory(root, found)
    if found["suffixes"]:
        raise InvalidNode(
            "GS0420",
            f"the driver that runs is {version}, and the files below {root or '/'} are of "
            f"{' and '.join(found['suffixes'])}",
            hint="reboot, or reload the driver; gpushim.roots.driver names where its files stand",
        )
    return None


def _sockets(root: str) -> "list[tuple[str, str, list[str]]]":
    out = []
    for path, brings in SOCKETS.items():
        try:
            mode = os.stat(root + path).st_mode & 0o170000
        except OSError:
            continue
        if mode in (0o140000, 0o040000):
            out.append((path, "socket", [brings]))
    return out


def driver_version(proc: str) -> str | None:
    """The version of the driver that runs, of the NVRM line in driver/nvidia/version; GCC's has one too."""
    try:
        text = decode(files.read(f"{proc}/driver/nvidia/version"))
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                parts = word.split(".")
                if len(parts) in (2, 3) and all(part.isdigit() for part in parts):
                    return word
    return None


def _kept(root: str, version: str, state_dir: str) -> "dict[str, Any] | None":
    data = state.read(state_dir, CACHE)
    if data is None:
        return None
    try:
        kept = loads(decode(data))
        found: dict[str, Any] = kept["found"]
        if (kept["root"], found["version"]) != (root, version):
            return None
        return found if kept["identity"] == _identity(root, found["directories"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def _identity(root: str, directories: list[str]) -> "list[list[Any]]":
    """Path, inode and mtime in ns of each directory that counts: what comes or goes there changes it."""
    return [[directory, *_stamp(root + directory)] for directory in (*directories, "/usr/bin")]


def _stamp(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns
