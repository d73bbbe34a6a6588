"""CUDA's forward-compatibility libraries, which an image may carry: whether they are newer than the driver.

Read as data alone, bounded, by descriptors below the image's root; nothing of it is run. Source: NVIDIA's
CUDA Compatibility guide; the NVIDIA Container Toolkit, cmd/nvidia-cdi-hook/cudacompat.
"""

import posix as os
import struct

from gpushim import linux
from gpushim.json_text import decode, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.rootfs import Root

DIRECTORY = "/usr/local/cuda/compat"

_NOTE = b".note.cuda.fwd_compatibility"
_MOST = 1000  # names, sections
_LONGEST = 64 << 10  # bytes of a note
_REGULAR = 0o100000

# elf(5): Elf64_Ehdr from e_shoff on, and Elf64_Shdr.
_HEADER = struct.Struct("<4sBB34xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def libraries(root: "Root", version: str) -> "list[tuple[str, str]]":
    """SONAME and path of each compatibility library of the image, if they are newer than driver *version*."""
    names = _names(root)
    cuda = [name for name in names if name.startswith("libcuda.so.") and name.count(".") > 2]
    if len(cuda) != 1 or not _is_newer(root, cuda[0], version):
        return []
    found = []
    for name in names:
        fd = _open(root, f"{DIRECTORY}/{name}")
        if fd < 0:
            continue
        try:
            soname = linux.elf(fd, name)[2]
        except OSError:
            continue
        finally:
            os.close(fd)
        if soname.startswith("lib") and "/" not in soname:
            found.append((soname, f"{DIRECTORY}/{soname}"))
    return sorted(set(found))


def _names(root: "Root") -> list[str]:
    try:
        fd = linux.open_in_root(root.fd, DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return sorted([name for name in os.listdir(fd)[:_MOST] if ".so." in name])
    finally:
        os.close(fd)


def _open(root: "Root", path: str) -> int:
    """A descriptor of the regular file *path*, -1 where it is none."""
    try:
        fd = linux.open_in_root(root.fd, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return -1
    if os.fstat(fd).st_mode & 0o170000 == _REGULAR:
        return fd
    os.close(fd)
    return -1


def _is_newer(root: "Root", name: str, version: str) -> bool:
    """Whether the library *name* is of a newer driver than *version*, and made to run with it."""
    compat = _numbers(name.removeprefix("libcuda.so."))
    host = _numbers(version)
    if not compat or not host:
        return False
    fd = _open(root, f"{DIRECTORY}/{name}")
    if fd < 0:
        return False
    try:
        drivers = _note(fd)
    except (OSError, ValueError, struct.error):
        drivers = None
    finally:
        os.close(fd)
    if drivers is None:
        return compat[0] > host[0]
    return compat > host and host[0] in drivers


def _note(fd: int) -> "list[int] | None":
    """The major versions of drivers that the library's note lists; None where it has no note."""
    magic, bits, order, offset, size, count, names = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
    if (magic, bits, order) != (b"\x7fELF", 2, 1) or size != _SECTION.size or count > _MOST or names >= count:
        return None
    table = list(_SECTION.iter_unpack(os.pread(fd, size * count, offset)))
    strings = table[names]
    for section in table:
        if os.pread(fd, len(_NOTE) + 1, strings[4] + section[0]) != _NOTE + b"\0":
            continue
        data = os.pread(fd, min(section[5], _LONGEST), section[4])
        owner, payload, _ = struct.unpack_from("<III", data)
        start = 12 + (owner + 3 & ~3)
        found = loads(decode(data[start : start + payload].rstrip(b"\0")))
        listed = found.get("Driver") if isinstance(found, dict) else None
        return [int(str(one).partition(".")[0]) for one in listed] if isinstance(listed, list) else None
    return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple([int(part) for part in parts]) if all(part.isdigit() for part in parts) else ()
