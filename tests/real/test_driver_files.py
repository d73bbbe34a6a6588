"""The driver's files in real containers: the loader finds them, with no hook in config.json."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakenode import driver
from tests.fakenode.driver import VERSION, WHERE
from tests.real import roots
from tests.real.bed import Bed, Cell, Ran
from tests.real.test_hook import Hooked
from tests.real.test_odd_containers import in_user_namespace
from tests.real.test_seed import SHIM, Seed

ASKED = (
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvcuvid.so.1",
)
FOUND = {
    "libcuda.so.1": "ok",
    "libcuda.so": "ok",
    "libnvidia-ml.so.1": "1 GPUs",
    "libnvidia-ptxjitcompiler.so.1": "ok",
    "libnvcuvid.so.1": "libnvcuvid.so.1: cannot open shared object file: No such file or directory",
}
ENV = ("NVIDIA_VISIBLE_DEVICES=all",)


class Filled(Seed):
    """The seed's node with a driver's files, and containers whose root is of a kind."""

    def __init__(self, bed: Bed, directory: Path) -> None:
        super().__init__(bed, directory)
        driver.install(directory / "driver")

    def root(self, kind: str) -> Path:
        path = self.bed.directory / f"root-{kind}-{len(list(self.bed.directory.iterdir()))}"
        roots.make(kind, path)
        give_nvml_its_words(self, path)
        return path

    def loads(self, root: Path, *env: str, args: tuple[str, ...] = ("/loads", *ASKED), change: Callable[[dict[str, Any]], None] = lambda config: None) -> Ran:  # fmt: skip
        def of_root(config: dict[str, Any]) -> None:
            config["root"]["path"] = str(root)
            config["process"]["args"] = list(args)
            change(config)

        self.last = self.bed.bundle([], env or ENV, change=of_root)
        return self.bed.run(self.last, SHIM, env=self.env)


def give_nvml_its_words(seed: Seed, root: Path) -> None:
    """The simulated NVML reads what it knows from a file beside itself, which no driver has."""
    (root / WHERE).mkdir(parents=True, exist_ok=True)
    shutil.copy(seed.settings.parent / "driver" / WHERE / "nvml.txt", root / WHERE / "nvml.txt")


def answers(ran: Ran) -> dict[str, str]:
    assert (ran.code, ran.err) == (0, "")
    return dict(line.split(" ", 1) for line in ran.out.splitlines())


@pytest.fixture(params=[Cell("host", "runc", "v1"), Cell("sid", "crun", "v2")], ids=str)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    bed = Bed(request.param, tmp_path / "bed")
    return Filled(bed, bed.directory / "node")


@pytest.mark.parametrize("kind", sorted(roots.KINDS))
def test_a_program_finds_the_driver(filled: Filled, kind: str) -> None:
    root = filled.root(kind)

    assert answers(filled.loads(root)) == FOUND

    config = json.loads((filled.last / "config.json").read_text())
    assert "hooks" not in config
    # Again, in the same root: nothing piles up.
    before = tree(root)
    assert answers(filled.loads(root)) == FOUND
    assert tree(root) == before


def tree(root: Path) -> dict[str, str]:
    """What each link leads to, and what each file holds, as a digest."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else digest(path)
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["debian", "rhel"])
def test_ldconfig_lists_it_and_keeps_it(filled: Filled, kind: str) -> None:
    root = filled.root(kind)
    before = answers_of_ldconfig(filled.loads(root, "A=b", args=("/usr/sbin/ldconfig", "-p")))

    listed = answers_of_ldconfig(filled.loads(root, args=("/usr/sbin/ldconfig", "-p")))

    own = {
        name: path for name, path in listed.items() if path.startswith(f"/{WHERE}/") and name not in before
    }
    assert own == {f"{name}": f"/{WHERE}/{name}" for name in driver_sonames()}
    assert {name: listed[name] for name in before} == before
    # A later ldconfig in the container, and the loader after it.
    ran = filled.loads(root, args=("/usr/sbin/ldconfig",))
    assert (ran.code, ran.err) == (0, "")
    assert answers(filled.loads(root)) == FOUND


def driver_sonames() -> set[str]:
    stems = ("cuda", "nvidia-ml", "nvidia-ptxjitcompiler", "nvidia-allocator", "nvidia-tomorrow")
    return {driver.SONAMES[stem] for stem in stems}


def answers_of_ldconfig(ran: Ran) -> dict[str, str]:
    assert (ran.code, ran.err) == (0, "")
    lines = [line.strip().partition(" (") for line in ran.out.splitlines() if " => " in line]
    return {name: rest.rpartition(" => ")[2] for name, _, rest in lines}


def test_what_the_capabilities_name_and_nothing_else(filled: Filled) -> None:
    root = filled.root("debian")

    found = answers(filled.loads(root, *ENV, "NVIDIA_DRIVER_CAPABILITIES=utility"))

    assert found["libnvidia-ml.so.1"] == "1 GPUs"
    assert found["libcuda.so.1"].startswith("libcuda.so.1: cannot open shared object file")
    everything = answers(filled.loads(root, *ENV, "NVIDIA_DRIVER_CAPABILITIES=all"))
    assert everything["libnvcuvid.so.1"] == "ok"


def test_a_new_driver_leaves_nothing_of_the_old(filled: Filled) -> None:
    root = filled.root("debian")
    filled.loads(root)
    node = filled.settings.parent
    shutil.rmtree(node / "driver")
    driver.install(node / "driver", "590.10.01")
    version = node / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(VERSION, "590.10.01"))

    assert answers(filled.loads(root)) == FOUND
    assert os.readlink(root / WHERE / "libcuda.so.1") == "libcuda.so.590.10.01"


def with_compat(root: Path, version: str, note: str | None = None) -> None:
    """The compatibility libraries of a CUDA image, whose libcuda says so when it is initialised."""
    directory = root / "usr/local/cuda-13.1/compat"
    directory.mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to("/usr/local/cuda-13.1")
    path = directory / f"libcuda.so.{version}"
    path.write_bytes(driver.library("libcuda.so.1", "int cuInit(unsigned flags) { return 7; }\n"))
    (directory / "libcuda.so.1").symlink_to(path.name)
    if note is not None:
        owner, payload = b"NVIDIA Corporation\0\0", note.encode()
        data = struct.pack("<III", 19, len(payload), 1) + owner + payload
        section = directory.parent / "note"
        section.write_bytes(data)
        command = ["objcopy", "--add-section", f".note.cuda.fwd_compatibility={section}", str(path)]
        subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("version", "note", "taken"),
    [
        pytest.param("590.44.01", None, True, id="newer"),
        pytest.param("580.200.1", None, False, id="of-the-same-branch"),
        pytest.param("570.44.01", None, False, id="older"),
        pytest.param(
            "590.44.01", '{"CUDA Version": "13.1", "Driver": [570, 580]}', True, id="made-for-this-branch"
        ),
        pytest.param("590.44.01", '{"CUDA Version": "13.1", "Driver": [570]}', False, id="made-for-another"),
        pytest.param(
            "580.200.1", '{"CUDA Version": "13.1", "Driver": [580]}', True, id="newer-in-the-branch"
        ),
        pytest.param("590.44.01", "no JSON", True, id="a-note-of-no-sense"),
    ],
)
def test_forward_compatibility_is_taken_where_it_is_newer(
    filled: Filled, version: str, note: str | None, taken: bool
) -> None:
    root = filled.root("debian")
    with_compat(root, version, note)

    found = answers(filled.loads(root))

    assert found["libcuda.so.1"] == ("cuInit failed" if taken else "ok")
    assert found["libnvidia-ml.so.1"] == "1 GPUs"


def test_forward_compatibility_can_be_switched_off(filled: Filled) -> None:
    with filled.settings.open("a") as file:
        file.write("[features]\ndisable-cuda-compat-lib-hook = true\n")
    root = filled.root("debian")
    with_compat(root, "590.44.01")

    assert answers(filled.loads(root)) == FOUND


def test_a_compatibility_directory_that_leads_out_of_the_root_is_none(filled: Filled, tmp_path: Path) -> None:
    root = filled.root("debian")
    with_compat(tmp_path / "outside", "590.44.01")
    (root / "usr/local").mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to(tmp_path / "outside/usr/local/cuda-13.1")

    assert answers(filled.loads(root)) == FOUND


def test_what_an_image_has_at_our_places_gives_way(filled: Filled) -> None:
    """A CUDA image carries its own libcuda, placeholders of no size, or links of another driver."""
    root = filled.root("debian")
    where = root / WHERE
    (where / "libcuda.so.1").write_bytes(b"")
    (where / "libcuda.so").symlink_to("/nowhere")
    (where / "libnvidia-ml.so.1").symlink_to("../../../../../../../../etc/passwd")
    (where / f"libcuda.so.{VERSION}").write_bytes(b"")

    assert answers(filled.loads(root)) == FOUND


def test_a_directory_at_our_place_is_an_error_that_names_it(filled: Filled) -> None:
    root = filled.root("debian")
    (root / WHERE / "libcuda.so.1").mkdir()

    ran = filled.loads(root)

    assert ran.code == 1
    assert ran.err.startswith(f"gpushim: GS0621: /{WHERE}/libcuda.so.1: is a directory in the image")
    assert "nvidiactl" not in (filled.last / "config.json").read_text()


@pytest.mark.parametrize("place", ["usr/lib/x86_64-linux-gnu", "etc", "etc/ld.so.cache", "etc/ld.so.conf.d"])
@pytest.mark.parametrize(
    "target", ["{canary}", "../../../../../../../../../..{canary}", "/proc/self/root{canary}"]
)
def test_links_of_the_image_never_lead_out_of_its_root(
    filled: Filled, place: str, target: str, tmp_path: Path
) -> None:
    root = filled.root("distroless")
    canary = tmp_path / "canary"
    canary.mkdir()
    path = root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.format(canary=canary))

    ran = filled.loads(root)

    assert list(canary.iterdir()) == []
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("content", [b"", b"x" * 3000, b"glibc-ld.so.cache1.1" + b"\xff" * 200])
def test_a_cache_of_no_sense_is_left_alone(filled: Filled, content: bytes) -> None:
    root = filled.root("debian")
    (root / "etc/ld.so.cache").write_bytes(content)

    ran = filled.loads(root)

    assert "Traceback" not in ran.err
    if content:
        assert (root / "etc/ld.so.cache").read_bytes() == content


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.mknod(path, 0o020666, os.makedev(1, 5))]
)
def test_what_is_no_file_at_the_caches_place_holds_nobody(
    filled: Filled, make: Callable[[Path], None]
) -> None:
    root = filled.root("debian")
    (root / "etc/ld.so.cache").unlink()
    make(root / "etc/ld.so.cache")

    assert "Traceback" not in filled.loads(root).err


def test_in_a_user_namespace_what_is_made_is_the_containers_roots(tmp_path: Path) -> None:
    bed = Bed(Cell("host", "runc", "v1"), tmp_path / "bed")
    filled = Filled(bed, bed.directory / "node")
    root = filled.root("debian")
    for path in (*bed.directory.parents, bed.directory, *root.rglob("*"), root):
        if path.is_dir() and os.stat(path).st_mode & 0o055 != 0o055:
            os.chmod(path, 0o755)
    subprocess.run(["chown", "-Rh", "100000:100000", str(root)], check=True)

    assert answers(filled.loads(root, change=in_user_namespace)) == FOUND

    assert os.lstat(root / WHERE / "libcuda.so.1").st_uid == 100_000
    assert (root / "etc/ld.so.cache").stat().st_uid == 100_000


def test_the_hook_gives_the_same(tmp_path: Path) -> None:
    bed = Bed(Cell("host", "runc", "v1"), tmp_path / "bed")
    hooked = Hooked(bed, bed.directory / "node")
    driver.install(bed.directory / "node/driver")
    root = bed.directory / "root"
    roots.make("debian", root)
    give_nvml_its_words(hooked, root)

    def change(config: dict[str, Any]) -> None:
        config["root"]["path"] = str(root)
        config["process"]["args"] = ["/loads", *ASKED]

    assert answers(hooked.run(hooked.bundle(*ENV, change=change))) == FOUND
    assert hooked.log == ""
