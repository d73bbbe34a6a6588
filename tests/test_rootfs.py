"""What is written in a container's root: in there whatever stands in the way, all or nothing, and only once."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushim.driver_files import RootWork
from gpushim.errors import Conflict
from gpushim.rootfs import DROP_IN, Root, apply, prepare
from tests.fakenode.driver import library

LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def root(place: Path) -> Iterator[Root]:
    fd = os.open(place, os.O_PATH | os.O_DIRECTORY)
    yield Root(fd, os.geteuid(), os.getegid())
    os.close(fd)


def work(*libraries: tuple[str, str, int]) -> RootWork:
    out = RootWork()
    out.links = [(f"{LIBRARIES}/libcuda.so.1", "libcuda.so.580.1")]
    out.libraries = list(libraries) or [("libcuda.so.1", f"{LIBRARIES}/libcuda.so.1", 64)]
    out.directories = [LIBRARIES]
    return out


def test_a_link_takes_the_place_of_a_file_or_link(place: Path, root: Root) -> None:
    where = place / LIBRARIES.lstrip("/")
    where.mkdir(parents=True)
    (where / "a").write_text("a file")
    (where / "b").symlink_to("/etc/passwd")

    for name in ("a", "b", "c"):
        root.link(f"{LIBRARIES}/{name}", "target")

    assert {path.name: os.readlink(path) for path in where.iterdir()} == dict.fromkeys("abc", "target")


def test_a_directory_in_the_place_of_a_link_is_told_and_left(place: Path, root: Root) -> None:
    (place / "a/b").mkdir(parents=True)

    with pytest.raises(Conflict, match=r"GS0621: /a/b: is a directory in the image"):
        root.link("/a/b", "target")

    assert [path.name for path in (place / "a").iterdir()] == ["b"]


def test_a_file_that_is_no_regular_one_is_not_read(place: Path, root: Root) -> None:
    os.mkfifo(place / "fifo")
    (place / "directory").mkdir()
    (place / "large").write_bytes(b"x" * ((1 << 20) + 1))
    (place / "link").symlink_to("/proc/self/root/etc/passwd")

    assert [root.read(f"/{name}") for name in ("fifo", "directory", "large", "link", "none")] == [None] * 5


def test_directories_are_made_below_a_link_within_the_root(place: Path, root: Root) -> None:
    (place / "usr").mkdir()
    (place / "lib").symlink_to("/usr")

    root.write("/lib/new/file", b"text")

    assert (place / "usr/new/file").read_bytes() == b"text"


def test_musl_is_told_by_its_own_file(place: Path, root: Root) -> None:
    machine = os.uname().machine
    loader = place / f"lib/ld-musl-{machine}.so.1"
    loader.parent.mkdir()
    loader.write_bytes(library("libc.so"))

    assert apply(root, work()) == []
    assert apply(root, work()) == []

    path = place / f"etc/ld-musl-{machine}.path"
    assert path.read_text() == f"/lib\n/usr/local/lib\n/usr/lib\n{LIBRARIES}\n"
    assert not (place / "etc/ld.so.cache").exists()


def test_an_image_without_a_loader_is_told_of(place: Path, root: Root) -> None:
    assert apply(root, work()) == [
        "the image has no dynamic loader: the driver's libraries are there, and nothing finds them"
    ]
    assert os.readlink(place / LIBRARIES.lstrip("/") / "libcuda.so.1") == "libcuda.so.580.1"


def test_a_loader_of_another_machine_is_told_of(place: Path, root: Root) -> None:
    data = bytearray(library("ld.so"))
    data[18:20] = (243).to_bytes(2, "little")  # RISC-V
    (place / "lib64").mkdir()
    (place / "lib64/ld-linux-x86-64.so.2").write_bytes(bytes(data))

    (warning,) = apply(root, work())

    assert warning.startswith("the image is for another machine (other)")
    assert not (place / "etc").exists()


def test_a_second_time_no_file_is_touched(place: Path, root: Root) -> None:
    (place / "lib64").mkdir()
    (place / "lib64/ld-linux-x86-64.so.2").write_bytes(library("ld.so"))
    apply(root, work())
    inodes = {path: path.lstat().st_ino for path in place.rglob("*")}

    assert apply(root, work()) == []

    assert {path: path.lstat().st_ino for path in place.rglob("*")} == inodes
    assert (place / DROP_IN.lstrip("/")).read_text().splitlines()[1] == LIBRARIES


def test_the_hosts_own_root_is_never_written() -> None:
    (warning,) = prepare({"root": {"path": "/"}}, "/none", work())

    assert warning == "/: is the root of this host: nothing is written there"


def test_a_root_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (warning,) = prepare({"root": {"path": "gone"}}, str(tmp_path), work())

    assert warning.endswith("the driver's libraries are mounted, and the loader may not find them")


RENAME_EXCHANGE, AT_FDCWD = 2, -100


@pytest.mark.parametrize("operation", ["link", "write", "read"])
def test_a_directory_that_is_swapped_all_the_time_leads_nowhere_else(
    place: Path, root: Root, tmp_path: Path, operation: str
) -> None:
    """An image's process that exchanges a directory and a link to the host, as fast as it can (renameat2(2))."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "kept").write_text("canary")
    (place / "swap").mkdir()
    (place / "swap/kept").write_text("image")
    (place / "link").symlink_to(canary)
    libc = ctypes.CDLL(None)
    stop = threading.Event()

    def swap() -> None:
        one, other = bytes(place / "swap"), bytes(place / "link")
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            _once(root, operation)
    finally:
        stop.set()
        thread.join()

    assert {path.name: path.read_text() for path in canary.iterdir()} == {"kept": "canary"}


def _once(root: Root, operation: str) -> None:
    actions: dict[str, Callable[[], object]] = {
        "link": lambda: root.link("/swap/made", "target"),
        "write": lambda: root.write("/swap/made", b"text"),
        "read": lambda: root.read("/swap/kept"),
    }
    try:
        found = actions[operation]()
    except OSError:
        return  # the link leads to what the root does not have
    assert found in (None, b"image")
