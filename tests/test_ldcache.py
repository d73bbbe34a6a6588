"""The loader's cache: what ldconfig wrote is read, merged and written as it would have."""

import contextlib
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim import ldcache
from gpushim.ldcache import Cache, Entry, parse

FLAGS = 0x0303
OWN = Path("/etc/ld.so.cache")


def merged(cache: Cache, added: list[Entry], gone: set[bytes]) -> bytes:
    """What the cache is after it, be it as it was."""
    out = ldcache.merged(cache, added, gone)
    assert out is not None
    return out


def rows(data: bytes) -> list[tuple[bytes, bytes]]:
    """SONAME and path of each row of the cache *data*."""
    cache = parse(data)
    return [(cache.text(soname), cache.text(path)) for _, soname, path, _, _ in cache.rows]


def hwcaps(data: bytes) -> list[bytes]:
    """The names of the glibc-hwcaps extension."""
    cache = parse(data)
    sections = [section for tag, _, section in cache.extensions if tag == 1]
    return [cache.text(one) for section in sections for (one,) in struct.iter_unpack("<I", section)]


def plain(*names: str, flags: int = FLAGS) -> bytes:
    return merged(
        Cache(), [Entry(flags, name.encode(), f"/usr/lib/{name}".encode()) for name in names], set()
    )


def test_the_cache_of_this_machine_survives() -> None:
    before = OWN.read_bytes()

    after = merged(parse(before), [Entry(FLAGS, b"zzz.so.1", b"/z")], set())

    assert len(rows(before)) > 20
    assert rows(after) == [(b"zzz.so.1", b"/z"), *rows(before)]
    assert [row[3:] for row in parse(after).rows[1:]] == [row[3:] for row in parse(before).rows]
    assert hwcaps(after) == hwcaps(before)
    assert [tag for tag, *_ in parse(after).extensions] == [tag for tag, *_ in parse(before).extensions]


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

    path.write_bytes(merged(parse(OWN.read_bytes()), added, set()))

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
    assert [soname.decode() for soname, _ in rows(plain(*names))] == order


def test_what_won_before_wins_still() -> None:
    twice = merged(Cache(), [Entry(FLAGS, b"liba.so.1", b"/first")], set())
    other = merged(parse(twice), [Entry(0x0303 | 0x1000, b"liba.so.1", b"/second")], set())

    after = merged(parse(other), [Entry(FLAGS, b"libb.so.1", b"/b")], set())

    assert [one for one in rows(after) if one[0] == b"liba.so.1"] == rows(other)


def test_the_drivers_file_takes_the_place_of_the_images_of_its_name_and_machine() -> None:
    image = plain("libcuda.so.1", "libc.so.6")
    image = merged(parse(image), [Entry(0x0003, b"libcuda.so.1", b"/usr/lib32/libcuda.so.1")], set())

    after = merged(parse(image), [Entry(FLAGS, b"libcuda.so.1", b"/driver")], set())

    assert rows(after) == [
        (b"libcuda.so.1", b"/driver"),
        (b"libcuda.so.1", b"/usr/lib32/libcuda.so.1"),
        (b"libc.so.6", b"/usr/lib/libc.so.6"),
    ]


def test_a_second_time_there_is_nothing_to_do() -> None:
    cuda = [Entry(FLAGS, b"libcuda.so.1", b"/driver")]
    once = merged(parse(plain("libc.so.6")), cuda, set())

    assert ldcache.merged(parse(once), cuda, {b"/old"}) is None


def test_what_an_earlier_run_added_goes() -> None:
    after = merged(parse(plain("libold.so.1", "libc.so.6")), [], {b"/usr/lib/libold.so.1"})

    assert rows(after) == [(b"libc.so.6", b"/usr/lib/libc.so.6")]


def test_the_old_block_in_front_is_read_over() -> None:
    new = plain("liba.so.1")
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + b"\0" * 12
    padded = old + b"\0" * (-len(old) % 8)

    assert rows(padded + new) == [(b"liba.so.1", b"/usr/lib/liba.so.1")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is cut or corrupt"),
        (b"x" * 100, "is of no known format"),
        (b"ld.so-1.7.0\0" + struct.pack("<I", 1 << 31), "is cut or corrupt"),
        (plain("liba.so.1")[:50], "is cut or corrupt"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 1 << 31, 0, 2, 0, 0, 0, 0), "is cut or corrupt"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 0, 0, 1, 0, 0, 0, 0), "is of another byte order"),
        (b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xIIII", 0, 0, 2, 1 << 31, 0, 0, 0), "is cut or corrupt"),
    ],
)  # fmt: skip
def test_what_is_no_cache_is_told(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(data)


@pytest.mark.fuzz
@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=8))
def test_no_bytes_raise_anything_else(tail: bytes, at: int, patch: bytes) -> None:
    good = plain("liba.so.1", "libb.so.2")
    for data in (tail, good[:at] + patch + good[at + len(patch) :], good[:at] + tail):
        with contextlib.suppress(ValueError):
            ldcache.merged(parse(data), [Entry(FLAGS, b"libaa.so", b"/x")], {b"/y"})


def test_a_string_out_of_range_is_told_where_it_is_needed() -> None:
    broken = b"glibc-ld.so.cache1.1" + struct.pack(
        "<IIB3xIIIIiIIIQ", 1, 0, 2, 0, 0, 0, 0, 3, 1 << 31, 0, 0, 0
    )

    with pytest.raises(ValueError, match="is cut or corrupt"):
        merged(parse(broken), [Entry(FLAGS, b"libcuda.so.1", b"/x")], set())


def test_a_full_cache_takes_milliseconds() -> None:
    data = plain(*[f"lib{n}.so.{n % 7}" for n in range(2000)])
    started = time.process_time()

    merged(parse(data), [Entry(FLAGS, b"libcuda.so.1", b"/x")], set())

    assert time.process_time() - started < 0.1
