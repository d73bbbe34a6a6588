"""The driver's files on this host: found by version, SONAME and capability, and kept while nothing changes."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from gpushim import driver
from gpushim.driver import Inventory, read_driver
from gpushim.errors import InvalidNode
from tests.conftest import Shim
from tests.fakenode import driver as files
from tests.fakenode.driver import VERSION, WHERE


@pytest.fixture
def root(shim: Shim) -> Path:
    """The driver's root of the simulated node, with the files of a driver in it."""
    files.install(shim.root / "driver")
    return shim.root / "driver"


def read(shim: Shim) -> Inventory:
    found = read_driver(shim.settings, str(shim.state))
    assert found is not None
    return found


def test_libraries_are_those_of_the_version_that_runs(shim: Shim, root: Path) -> None:
    (root / WHERE / "libcuda.so.570.1.1").write_bytes(files.library("libcuda.so.1"))
    (root / WHERE / f"libbroken.so.{VERSION}").write_bytes(b"no ELF")

    found = read(shim)

    assert found.version == VERSION
    assert {path: (soname, bits, brings) for path, soname, bits, brings in found.libraries} == {
        f"/{WHERE}/libcuda.so.{VERSION}": ("libcuda.so.1", 64, ["compute", "video"]),
        f"/{WHERE}/libnvidia-ml.so.{VERSION}": ("libnvidia-ml.so.1", 64, ["utility"]),
        f"/{WHERE}/libnvidia-ptxjitcompiler.so.{VERSION}": (
            "libnvidia-ptxjitcompiler.so.1",
            64,
            ["compute", "video"],
        ),
        f"/{WHERE}/libnvidia-allocator.so.{VERSION}": (
            "libnvidia-allocator.so.1",
            64,
            ["compute", "video", "graphics", "display"],
        ),
        f"/{WHERE}/libnvcuvid.so.{VERSION}": ("libnvcuvid.so.1", 64, ["video"]),
        f"/{WHERE}/libGLX_nvidia.so.{VERSION}": ("libGLX_nvidia.so.0", 64, ["graphics", "display"]),
        f"/{WHERE}/libnvidia-glcore.so.{VERSION}": (
            f"libnvidia-glcore.so.{VERSION}",
            64,
            ["graphics", "display"],
        ),
        f"/{WHERE}/libnvidia-ngx.so.{VERSION}": ("libnvidia-ngx.so.1", 64, ["ngx"]),
        f"/{WHERE}/libnvidia-tomorrow.so.{VERSION}": (
            "libnvidia-tomorrow.so.1",
            64,
            ["compute", "video", "graphics", "display", "ngx"],
        ),
    }


def test_links_lead_to_the_soname_and_from_the_plain_name(shim: Shim, root: Path) -> None:
    links = {path: target for path, target, _, _ in read(shim).links}

    assert links[f"/{WHERE}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert links[f"/{WHERE}/libcuda.so"] == "libcuda.so.1"
    assert links[f"/{WHERE}/libnvidia-ml.so.1"] == f"libnvidia-ml.so.{VERSION}"
    assert links[f"/{WHERE}/libGLX_indirect.so.0"] == f"libGLX_nvidia.so.{VERSION}"
    assert f"/{WHERE}/libnvidia-ml.so" not in links  # this host has none
    assert f"/{WHERE}/libnvidia-glcore.so.{VERSION}" not in links  # its SONAME is its name


def test_programs_firmware_and_configuration(shim: Shim, root: Path) -> None:
    assert sorted([list(one) for one in read(shim).files]) == [
        ["/etc/vulkan/icd.d/nvidia_icd.json", "configuration", ["graphics", "display"]],
        [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "firmware", []],
        ["/usr/bin/nvidia-cuda-mps-server", "binary", ["compute"]],
        ["/usr/bin/nvidia-smi", "binary", ["utility"]],
    ]


def test_a_directory_that_is_a_link_is_looked_into_once(shim: Shim, root: Path) -> None:
    """An absolute link of a driver container stays in its root."""
    shutil.rmtree(root / "lib")
    (root / "lib").symlink_to("/usr/lib")

    found = read(shim)

    assert len(found.libraries) == 9
    assert {path.startswith("/usr/lib/") for path, *_ in found.libraries} == {True}


def test_a_link_out_of_the_root_leads_nowhere(shim: Shim, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    files.install(outside)
    shutil.rmtree(root / WHERE)
    (root / WHERE).symlink_to(outside / WHERE)

    assert read_driver(shim.settings, str(shim.state)) is None


def test_files_of_another_version_name_both(shim: Shim, root: Path) -> None:
    shutil.rmtree(root / WHERE)
    files.install_libraries(root / WHERE, "570.86.10")

    with pytest.raises(InvalidNode) as caught:
        read(shim)

    assert str(caught.value).startswith(
        f"GS0420: the driver that runs is {VERSION}, and the files below {root} are of 570.86.10"
    )


def test_without_files_there_is_none(shim: Shim) -> None:
    assert read_driver(shim.settings, str(shim.state)) is None


def settle(root: Path) -> None:
    """Make every directory look as if nothing had happened for a while."""
    past = time.time() - 60
    for path in (root, *root.rglob("*")):
        os.utime(path, (past, past), follow_symlinks=False)


def test_it_is_kept_until_a_directory_changes(
    shim: Shim, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(root)
    first = read(shim)
    kept = json.loads((shim.state / driver.CACHE).read_text())
    assert kept["found"]["version"] == VERSION
    monkeypatch.setattr("gpushim.driver_inventory.inventory", lambda *_: pytest.fail("looked again"))
    assert read(shim).libraries == first.libraries
    monkeypatch.undo()

    (root / WHERE / f"libnvidia-cfg.so.{VERSION}").write_bytes(files.library("libnvidia-cfg.so.1"))

    assert len(read(shim).libraries) == len(first.libraries) + 1


def test_a_directory_that_is_still_being_filled_is_not_kept(shim: Shim, root: Path) -> None:
    read(shim)

    assert not (shim.state / driver.CACHE).exists()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\nGCC version:  gcc version 11.4.0", "535.54.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  418.67  Sat Apr  6\n", "418.67"),
        ("GCC version:  gcc version 11.4.0\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_version_that_runs(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "driver/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert driver.driver_version(str(tmp_path)) == version
