"""The driver's files on this host, found anew. Cold: driver.py keeps the result.

Every path is one below the driver's root, and stays below it whatever links say (openat2(2),
RESOLVE_IN_ROOT): in a driver container `/lib` may be an absolute link.
"""

import posix as os

from gpushim import linux
from gpushim.driver_table import (
    BINARIES,
    CONFIGURATION,
    DIRECTORIES,
    FIRMWARE,
    LIBRARIES,
    OTHERS,
    OWN_VERSIONS,
    PROGRAMS,
    SHARES,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 20_000  # names of one directory
_FILE = 0o100000
_PATIENCE = 5.0  # seconds, for a libcuda that was never loaded since the boot


def inventory(root: str, version: str) -> "dict[str, Any]":
    """What the driver *version* has below *root*, as driver.Inventory takes it; OSError without a *root*."""
    fd = os.open(root or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = _Found(fd, version)
        for bits, directories in DIRECTORIES.items():
            for directory in directories:
                found.libraries_in(directory, bits)
        found.programs()
        found.files()
        return {
            "version": version,
            "libraries": found.libraries,
            "links": found.links,
            "files": found.others,
            "suffixes": sorted(found.suffixes),
            "directories": found.directories,
            "cuda": _cuda_version(root, found.libraries),
        }
    finally:
        os.close(fd)


def _cuda_version(root: str, libraries: "list[list[Any]]") -> str:
    """Of libcuda, a constant of it: `13.0`; empty where it does not tell."""
    for path, soname, bits, _ in libraries:
        if soname == "libcuda.so.1" and bits == 64:
            try:
                version = linux.cuda_version(root + path, _PATIENCE)
            except OSError:
                return ""
            return f"{version // 1000}.{version % 1000 // 10}" if version else ""
    return ""


class _Found:
    def __init__(self, root: int, version: str) -> None:
        self.root = root
        self.version = version
        self.libraries: list[list[Any]] = []  # path, SONAME, bits, capabilities
        self.links: list[list[Any]] = []  # path, target, bits, capabilities
        self.others: list[list[Any]] = []  # path, kind, capabilities
        self.suffixes: set[str] = set()  # versions of libcuda and libnvidia-ml that are there
        self.directories: list[str] = []  # that were looked into
        self._seen: set[tuple[int, int]] = set()

    def _open(self, path: str, flags: int) -> int:
        """A descriptor, or -1 where nothing of that kind is there."""
        try:
            return linux.open_in_root(self.root, path, flags)
        except OSError:
            return -1

    def _kind(self, path: str) -> int:
        fd = self._open(path, os.O_PATH)
        if fd < 0:
            return 0
        kind = os.fstat(fd).st_mode & 0o170000
        os.close(fd)
        return kind

    def libraries_in(self, directory: str, bits: int) -> None:
        fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        if fd < 0:
            return
        try:
            stat = os.fstat(fd)
            if (stat.st_dev, stat.st_ino) in self._seen:
                return  # /lib is /usr/lib on most
            self._seen.add((stat.st_dev, stat.st_ino))
            self.directories.append(directory)
            names = sorted(os.listdir(fd)[:_MOST])
        finally:
            os.close(fd)
        known = set(names)
        for name in names:
            self._library(directory, name, bits, known)
        if bits == 64 and "vdpau" in known:
            self.libraries_in(f"{directory}/vdpau", bits)

    def _library(self, directory: str, name: str, bits: int, known: set[str]) -> None:
        stem, so, suffix = name.partition(".so.")
        if not so or not stem.startswith("lib") or suffix.count(".") < 1:
            return
        stem = stem[3:]
        if stem in ("cuda", "nvidia-ml"):
            self.suffixes.add(suffix)
        if suffix != self.version and stem not in OWN_VERSIONS:
            return
        path = f"{directory}/{name}"
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        if fd < 0:
            return
        try:
            own, _, soname = linux.elf(fd, path)
        except OSError:
            return  # a driver container may still be copying it
        finally:
            os.close(fd)
        if own != bits:
            return
        brings = list(LIBRARIES.get(stem, OTHERS))
        self.libraries.append([path, soname, bits, brings])
        if "/" in soname or soname in ("", ".", ".."):
            return
        if soname != name:
            self.links.append([f"{directory}/{soname}", name, bits, brings])
        plain = f"lib{stem}.so"
        # libcuda.so is what many programs load; others have theirs on hosts that build with them.
        if stem in ("cuda", "nvidia-opticalflow") or plain in known:
            self.links.append([f"{directory}/{plain}", soname, bits, brings])
        if stem == "GLX_nvidia":
            self.links.append([f"{directory}/libGLX_indirect.so.0", name, bits, brings])
        if stem == "nvidia-allocator" and self._kind(f"{directory}/gbm/nvidia-drm_gbm.so"):
            self.links.append(
                [f"{directory}/gbm/nvidia-drm_gbm.so", f"../{soname}", bits, ["graphics", "display"]]
            )

    def programs(self) -> None:
        for name, brings in BINARIES.items():
            for directory in PROGRAMS:
                if self._kind(f"{directory}/{name}") == _FILE:
                    self.others.append([f"{directory}/{name}", "binary", list(brings)])
                    break

    def files(self) -> None:
        for directory in FIRMWARE:
            where = f"{directory}/nvidia/{self.version}"
            fd = self._open(where, os.O_RDONLY | os.O_DIRECTORY)
            if fd < 0:
                continue
            names = sorted(os.listdir(fd)[:_MOST])
            os.close(fd)
            wanted = [name for name in names if name.startswith("gsp") and name.endswith(".bin")]
            self.others += [[f"{where}/{name}", "firmware", []] for name in wanted]
            if wanted:
                break
        for name, brings in CONFIGURATION.items():
            for directory in SHARES:
                if self._kind(f"{directory}/{name}") == _FILE:
                    self.others.append([f"{directory}/{name}", "configuration", list(brings)])
