"""/etc/ld.so.cache: read, merged, written. Pure.

Source: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new, file_entry_new, cache_extension) and
elf/cache.c. The new format, "glibc-ld.so.cache" 1.1, may stand behind the old one, "ld.so-1.7.0".
"""

import struct

_OLD, _NEW = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xIIII")  # magic, entries, bytes of strings, flags, extension offset, unused
_ENTRY = struct.Struct("<iIIIQ")  # flags, SONAME, path, kernel, hwcap
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS = 1  # cache_extension_tag_glibc_hwcaps: its section holds offsets of strings
_HWCAP_EXTENSION = 1 << 62  # dl_cache_hwcap_extension: the entry stands for a directory of glibc-hwcaps

LIMIT = 16 << 20  # bytes; a desktop has 200 KiB
_MOST = 200_000  # entries

# sysdeps/generic/ldconfig.h: FLAG_ELF_LIBC6, and what each machine adds.
_ELF_LIBC6 = 0x0003
FLAGS = {
    ("x86_64", 64): 0x0300 | _ELF_LIBC6,
    ("aarch64", 64): 0x0A00 | _ELF_LIBC6,
    ("x86_64", 32): _ELF_LIBC6,
}


class Entry:
    """One library: *flags* of its machine, and the hwcap bits that glibc's search order goes by."""

    __slots__ = ("flags", "hwcap", "kernel", "path", "soname")

    def __init__(self, flags: int, soname: bytes, path: bytes, kernel: int = 0, hwcap: int = 0) -> None:
        self.flags = flags
        self.soname = soname
        self.path = path
        self.kernel = kernel
        self.hwcap = hwcap


class Cache:
    """What stands in a cache: entries in their order, and the extensions as (tag, flags, data)."""

    __slots__ = ("entries", "extensions", "hwcaps")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.extensions: list[tuple[int, int, bytes]] = []
        self.hwcaps: list[bytes] = []


def parse(data: bytes) -> Cache:
    """The cache in *data*; ValueError where it is none that this can write again, whatever it holds."""
    try:
        return _parse(data)
    except (struct.error, IndexError) as problem:
        raise ValueError("is cut or corrupt") from problem


def _parse(data: bytes) -> Cache:
    base = 0
    if data.startswith(_OLD):
        (count,) = struct.unpack_from("<I", data, 12)
        base = 16 + count * 12 + 7 & ~7
    magic, count, _, flags, extension, *_ = _HEADER.unpack_from(data, base)
    if magic != _NEW:
        raise ValueError("is of no known format")
    if flags & 3 not in (0, 2):
        raise ValueError("is of another byte order")
    if count > _MOST or base + _HEADER.size + count * _ENTRY.size > len(data):
        raise ValueError("is cut or corrupt")
    out = Cache()
    for one in _ENTRY.iter_unpack(data[base + _HEADER.size : base + _HEADER.size + count * _ENTRY.size]):
        kind, soname, path, kernel, hwcap = one
        out.entries.append(
            Entry(kind, _string(data, base + soname), _string(data, base + path), kernel, hwcap)
        )
    if extension:
        _read_extensions(data, base, extension, out)
    if any(
        entry.hwcap & _HWCAP_EXTENSION and entry.hwcap & 0xFFFFFFFF >= len(out.hwcaps)
        for entry in out.entries
    ):
        raise ValueError("is cut or corrupt")
    return out


def _read_extensions(data: bytes, base: int, offset: int, out: Cache) -> None:
    magic, count = struct.unpack_from("<II", data, base + offset)
    if magic != _EXTENSION_MAGIC or count > 64:
        raise ValueError("has an extension of no known format")
    for n in range(count):
        tag, flags, start, size = struct.unpack_from("<IIII", data, base + offset + 8 + 16 * n)
        section = data[base + start : base + start + size]
        if len(section) < size:
            raise ValueError("is cut or corrupt")
        if tag == _HWCAPS:
            out.hwcaps = [_string(data, base + one) for (one,) in struct.iter_unpack("<I", section)]
        out.extensions.append((tag, flags, section))


def _string(data: bytes, offset: int) -> bytes:
    end = data.find(b"\0", offset, offset + 4096)
    if end < 0:
        raise ValueError("is cut or corrupt")
    return data[offset:end]


def merge(cache: Cache, added: list[Entry], gone: "set[bytes]") -> Cache:
    """*cache* with *added* instead of what it has of their names, and without the entries at *gone* paths.

    All other entries keep their order, so that whatever won before wins still.
    """
    new = {(entry.soname, entry.flags) for entry in added}
    out = Cache()
    out.extensions, out.hwcaps = cache.extensions, cache.hwcaps
    kept = [
        entry for entry in cache.entries if entry.path not in gone and (entry.soname, entry.flags) not in new
    ]
    # Stable, and in the order that the loader's binary search expects (elf/cache.c, compare): descending.
    out.entries = sorted(added + kept, key=_order, reverse=True)
    return out


def _order(entry: Entry) -> "list[tuple[int, int]]":
    """As dl-cache.c, _dl_cache_libcmp: digits as numbers, which come behind all else."""
    key, at, name = [], 0, entry.soname
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


def write(cache: Cache) -> bytes:
    """The bytes of *cache*, in the new format alone."""
    start = _HEADER.size + _ENTRY.size * len(cache.entries)
    strings, where = bytearray(), {}

    def place(text: bytes) -> int:
        if text not in where:
            where[text] = start + len(strings)
            strings.extend(text + b"\0")
        return where[text]

    rows = b"".join(
        [
            _ENTRY.pack(entry.flags, place(entry.soname), place(entry.path), entry.kernel, entry.hwcap)
            for entry in cache.entries
        ]
    )
    hwcaps = b"".join([struct.pack("<I", place(name)) for name in cache.hwcaps])
    size = len(strings)
    body = rows + bytes(strings)
    body += bytes(-(_HEADER.size + len(body)) % 4)
    offset = _HEADER.size + len(body) if cache.extensions else 0
    header = _HEADER.pack(_NEW, len(cache.entries), size, 2, offset, 0, 0, 0)
    return header + body + _extensions(cache, offset, hwcaps)


def _extensions(cache: Cache, offset: int, hwcaps: bytes) -> bytes:
    if not cache.extensions:
        return b""
    head = struct.pack("<II", _EXTENSION_MAGIC, len(cache.extensions))
    tail = b""
    first = offset + len(head) + 16 * len(cache.extensions)
    for tag, flags, data in cache.extensions:
        section = hwcaps if tag == _HWCAPS else data
        head += struct.pack("<IIII", tag, flags, first + len(tail), len(section))
        tail += section + bytes(-len(section) % 4)
    return head + tail
