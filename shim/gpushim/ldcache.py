"""/etc/ld.so.cache: read, and written again with more in it. Pure.

Source: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new, file_entry_new, cache_extension) and
elf/cache.c. The new format, "glibc-ld.so.cache" 1.1, may stand behind the old one, "ld.so-1.7.0". Rows are of
a fixed size and point into the strings behind them: those that stay are moved as they are, and not read.
"""

import struct

_OLD, _NEW = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xIIII")  # magic, rows, bytes of strings, flags, extension offset, unused
_ROW = struct.Struct("<iIIIQ")  # flags, offsets of SONAME and path, kernel, hwcap
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS = 1  # cache_extension_tag_glibc_hwcaps: its section holds offsets of strings

LIMIT = 16 << 20  # bytes; a desktop has 200 KiB
_MOST = 200_000  # rows
_LONGEST = 4096  # bytes of a SONAME or path

# sysdeps/generic/ldconfig.h: FLAG_ELF_LIBC6, and what each machine adds.
_ELF_LIBC6 = 0x0003
FLAGS = {
    ("x86_64", 64): 0x0300 | _ELF_LIBC6,
    ("aarch64", 64): 0x0A00 | _ELF_LIBC6,
    ("x86_64", 32): _ELF_LIBC6,
}


class Entry:
    """A library to be added: the *flags* of its machine, its SONAME and its path."""

    __slots__ = ("flags", "path", "soname")

    def __init__(self, flags: int, soname: bytes, path: bytes) -> None:
        self.flags = flags
        self.soname = soname
        self.path = path


class Cache:
    """A cache as it was read: `rows` are (flags, SONAME, path, kernel, hwcap), SONAME and path as offsets.

    `start` is where the strings begin in `data`, and `extensions` are (tag, flags, data).
    """

    __slots__ = ("data", "extensions", "rows", "start")

    def __init__(self, data: bytes = bytes(_HEADER.size), start: int = _HEADER.size) -> None:
        self.data = data
        self.start = start
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.extensions: list[tuple[int, int, bytes]] = []

    def text(self, offset: int) -> bytes:
        """The string at *offset*; ValueError where there is none."""
        end = self.data.find(b"\0", offset, offset + _LONGEST)
        if end < 0:
            raise ValueError("is cut or corrupt")
        return self.data[offset:end]


def parse(data: bytes) -> Cache:
    """The cache in *data*; ValueError where it is none that can be written again, whatever it holds."""
    try:
        return _parse(data)
    except struct.error as problem:
        raise ValueError("is cut or corrupt") from problem


def _parse(data: bytes) -> Cache:
    if data.startswith(_OLD):
        (count,) = struct.unpack_from("<I", data, 12)
        data = data[16 + count * 12 + 7 & ~7 :]  # offsets count from the new format's header
    magic, count, _, flags, extension, *_ = _HEADER.unpack_from(data)
    if magic != _NEW:
        raise ValueError("is of no known format")
    if flags & 3 not in (0, 2):
        raise ValueError("is of another byte order")
    start = _HEADER.size + count * _ROW.size
    if count > _MOST or start > len(data):
        raise ValueError("is cut or corrupt")
    out = Cache(data[: extension or len(data)], start)
    out.rows = list(_ROW.iter_unpack(data[_HEADER.size : start]))
    if extension:
        out.extensions = _extensions(data, extension)
    return out


def _extensions(data: bytes, offset: int) -> list[tuple[int, int, bytes]]:
    magic, count = struct.unpack_from("<II", data, offset)
    if magic != _EXTENSION_MAGIC or count > 64:
        raise ValueError("has an extension of no known format")
    out = []
    for n in range(count):
        tag, flags, start, size = struct.unpack_from("<IIII", data, offset + 8 + 16 * n)
        section = data[start : start + size]
        if len(section) < size or (tag == _HWCAPS and size % 4):
            raise ValueError("is cut or corrupt")
        out.append((tag, flags, section))
    return out


def merged(cache: Cache, added: list[Entry], gone: "set[bytes]") -> bytes | None:
    """The bytes of *cache* with *added* instead of what it has of their names, without those at *gone* paths.

    All other rows keep their order, so that whatever won before wins still. None where nothing is to be done,
    ValueError where it is corrupt.
    """
    rows = cache.rows
    if gone:
        kept = [row for row in rows if cache.text(row[2]) not in gone]
        rows = kept if len(kept) < len(rows) else rows
    missing = [entry for entry in added if not _has(cache, rows, entry)]
    if not missing and rows is cache.rows:
        return None
    data = bytearray(cache.data)
    new = []
    for entry in sorted(missing, key=_order_of_entry):
        new.append((entry.flags, len(data), len(data) + len(entry.soname) + 1, 0, 0))
        data += entry.soname + b"\0" + entry.path + b"\0"
    whole = Cache(bytes(data), cache.start)
    whole.extensions = cache.extensions
    for row in new:
        first, last = _places(whole, rows, whole.text(row[1]))
        others = [other for other in rows[first:last] if other[0] != row[0]]
        rows = [*rows[:first], row, *others, *rows[last:]]
    return _written(whole, rows)


def _has(cache: Cache, rows: "list[tuple[int, int, int, int, int]]", entry: Entry) -> bool:
    """Whether *entry* is the one row of its name and machine."""
    first, last = _places(cache, rows, entry.soname)
    same = [row for row in rows[first:last] if row[0] == entry.flags]
    return len(same) == 1 and cache.text(same[0][2]) == entry.path


def _places(cache: Cache, rows: "list[tuple[int, int, int, int, int]]", soname: bytes) -> tuple[int, int]:
    """From where to where *rows* are of *soname*: they are in descending order (elf/cache.c, compare)."""
    wanted = _order(soname)
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if _order(cache.text(rows[middle][1])) > wanted:
            low = middle + 1
        else:
            high = middle
    last = low
    while last < len(rows) and cache.text(rows[last][1]) == soname:
        last += 1
    return low, last


def _order_of_entry(entry: Entry) -> "list[tuple[int, int]]":
    return _order(entry.soname)


def _order(name: bytes) -> "list[tuple[int, int]]":
    """As dl-cache.c, _dl_cache_libcmp: digits as numbers, which come behind all else."""
    key, at = [], 0
    while at < len(name):
        if 48 <= name[at] <= 57:
            end = at
            while end < len(name) and 48 <= name[end] <= 57:
                end += 1
            key.append((1, int(name[at:end])))
            at = end
        else:
            key.append((0, name[at]))
            at += 1
    return key


def _written(cache: Cache, rows: "list[tuple[int, int, int, int, int]]") -> bytes:
    start = _HEADER.size + _ROW.size * len(rows)
    moved = start - cache.start
    pack = _ROW.pack
    limit = 0xFFFFFFFF
    table = b"".join(
        [
            pack(flags, soname + moved & limit, path + moved & limit, *rest)
            for flags, soname, path, *rest in rows
        ]
    )
    strings = cache.data[cache.start :]
    strings += bytes(-(start + len(strings)) % 4)
    offset = start + len(strings) if cache.extensions else 0
    header = _HEADER.pack(_NEW, len(rows), len(strings), 2, offset, 0, 0, 0)
    return header + table + strings + _with_extensions(cache, offset, moved)


def _with_extensions(cache: Cache, offset: int, moved: int) -> bytes:
    if not cache.extensions:
        return b""
    head = struct.pack("<II", _EXTENSION_MAGIC, len(cache.extensions))
    tail = b""
    first = offset + len(head) + 16 * len(cache.extensions)
    for tag, flags, data in cache.extensions:
        section = data
        if tag == _HWCAPS:
            section = b"".join(
                [struct.pack("<I", one + moved & 0xFFFFFFFF) for (one,) in struct.iter_unpack("<I", data)]
            )
        head += struct.pack("<IIII", tag, flags, first + len(tail), len(section))
        tail += section + bytes(-len(section) % 4)
    return head + tail
