"""The loader's cache: what ldconfig wrote is read, merged and written as it would have."""

import contextlib
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.ldcache import Cache, Entry, merge, parse, write

FLAGS = 0x0303
OWN = Path("/etc/ld.so.cache")


def rows(cache: Cache) -> list[tuple[bytes, bytes]]:
    return [(entry.soname, entry.path) for entry in cache.entries]


def plain(*names: str) -> Cache:
    out = Cache()
    out.entries = [Entry(FLAGS, name.encode(), f"/usr/lib/{name}".encode()) for name in names]
    return out


def test_the_cache_of_this_machine_survives() -> None:
    before = parse(OWN.read_bytes())

    after = parse(write(before))

    assert len(before.entries) > 20
    assert rows(after) == rows(before)
    assert [e.hwcap for e in after.entries] == [e.hwcap for e in before.entries]
    assert after.hwcaps == before.hwcaps
    assert [tag for tag, *_ in after.extensions] == [tag for tag, *_ in before.extensions]


def listed(cache: Path) -> list[str]:
    """What ldconfig(8) itself reads in it."""
    done = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(cache)], capture_output=True, text=True, check=True
    )
    return [line.strip() for line in done.stdout.splitlines()[1:] if "=>" in line]


def test_ldconfig_reads_what_was_merged(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    added = [Entry(FLAGS, b"libcuda.so.1", b"/x/libcuda.so.1"), Entry(FLAGS, b"libc.so.6", b"/x/libc.so.6")]
    before = listed(OWN)

    path.write_bytes(write(merge(parse(OWN.read_bytes()), added, set())))

    after = listed(path)
    assert "libcuda.so.1 (libc6,x86-64) => /x/libcuda.so.1" in after or len(after) == len(before) + 1
    assert [line for line in after if "/x/" not in line] == [
        line for line in before if not line.startswith("libc.so.6 ")
    ]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["liba.so.1", "liba.so.10", "liba.so.9"], ["liba.so.10", "liba.so.9", "liba.so.1"]),
        (["libz.so", "liba.so"], ["libz.so", "liba.so"]),
        (["libx-1.so", "libx1.so"], ["libx1.so", "libx-1.so"]),
    ],
)
def test_names_are_in_the_loaders_order(names: list[str], order: list[str]) -> None:
    merged = merge(Cache(), plain(*names).entries, set())

    assert [soname.decode() for soname, _ in rows(merged)] == order


def test_what_won_before_wins_still() -> None:
    cache = Cache()
    cache.entries = [Entry(FLAGS, b"liba.so.1", b"/first"), Entry(FLAGS, b"liba.so.1", b"/second")]

    merged = merge(cache, [Entry(FLAGS, b"libb.so.1", b"/b")], set())

    assert [path for soname, path in rows(merged) if soname == b"liba.so.1"] == [b"/first", b"/second"]


def test_the_drivers_file_takes_the_place_of_the_images_of_its_name_and_machine() -> None:
    cache = Cache()
    narrow = Entry(0x0003, b"libcuda.so.1", b"/usr/lib32/libcuda.so.1")
    cache.entries = [
        Entry(FLAGS, b"libcuda.so.1", b"/image"),
        Entry(FLAGS, b"libcuda.so.1", b"/image/hw", 0, 1 << 62),
        narrow,
    ]
    cache.hwcaps = [b"x86-64-v3"]
    cache.extensions = [(1, 0, b"")]

    merged = merge(cache, [Entry(FLAGS, b"libcuda.so.1", b"/driver")], set())

    assert rows(merged) == [(b"libcuda.so.1", b"/driver"), (b"libcuda.so.1", b"/usr/lib32/libcuda.so.1")]


def test_what_an_earlier_run_added_goes() -> None:
    cache = plain("libold.so.1", "libc.so.6")

    merged = merge(cache, [], {b"/usr/lib/libold.so.1"})

    assert rows(merged) == [(b"libc.so.6", b"/usr/lib/libc.so.6")]


def test_the_old_block_in_front_is_read_over() -> None:
    new = write(plain("liba.so.1"))
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + b"\0" * 12
    padded = old + b"\0" * (-len(old) % 8)

    assert rows(parse(padded + new)) == [(b"liba.so.1", b"/usr/lib/liba.so.1")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is cut or corrupt"),
        (b"x" * 100, "is of no known format"),
        (b"ld.so-1.7.0\0" + struct.pack("<I", 1 << 31), "is cut or corrupt"),
        (write(plain("liba.so.1"))[:50], "is cut or corrupt"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 1 << 31, 0, 2, 0, 0, 0, 0), "is cut or corrupt"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 0, 0, 1, 0, 0, 0, 0), "is of another byte order"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 0, 0, 2, 1 << 31, 0, 0, 0), "is cut or corrupt"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIIIiIIIQ", 1, 0, 2, 0, 0, 0, 0, 3, 1 << 31, 0, 0, 0), "is cut or corrupt"),
    ],
)  # fmt: skip
def test_what_is_no_cache_is_told(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(data)


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=8))
def test_no_bytes_raise_anything_else(tail: bytes, at: int, patch: bytes) -> None:
    good = write(plain("liba.so.1", "libb.so.2"))
    for data in (tail, good[:at] + patch + good[at + len(patch) :], good[:at] + tail):
        with contextlib.suppress(ValueError):
            write(parse(data))


def test_a_full_cache_takes_milliseconds() -> None:
    import time

    cache = plain(*[f"lib{n}.so.{n % 7}" for n in range(2000)])
    data = write(cache)
    started = time.process_time()

    write(merge(parse(data), plain("libcuda.so.1").entries, set()))

    assert time.process_time() - started < 0.2
