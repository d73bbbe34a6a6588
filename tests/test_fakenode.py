"""The simulated node against what real ones show: the kernel reference and the report's node, to the byte."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fakenode
from tests.fakenode import NODES, Node, build, moved
from tests.fakenode.majors import around, majors_in

CHECKOUT = Path(__file__).parent.parent
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    build(tmp_path, "seed")
    return tmp_path


def command(*args: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "tests.fakenode", *args]
    return subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)


# ---- what the kernel's files look like ----


def test_capability_files_are_three_decimal_lines(seed: Path) -> None:
    capabilities = seed / "proc/driver/nvidia/capabilities"

    config, monitor = ((capabilities / "mig" / name).read_text() for name in ("config", "monitor"))
    assert config == "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    assert monitor == "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    access = (capabilities / "gpu0/mig/gi7/ci0/access").read_text()
    assert access == "DeviceFileMinor: 67\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


def test_the_seeds_pairs_are_those_of_the_report(seed: Path) -> None:
    mig = seed / "proc/driver/nvidia/capabilities/gpu0/mig"

    def minor(path: Path) -> int:
        return int(path.read_text().split()[1])

    pairs = [(minor(mig / f"gi{gi}/access"), minor(mig / f"gi{gi}/ci0/access")) for gi in range(7, 14)]
    assert pairs == [(66, 67), (75, 76), (84, 85), (93, 94), (102, 103), (111, 112), (120, 121)]


@pytest.mark.parametrize(
    "line",
    [
        "config 1",
        "monitor 2",
        "gpu0/gi0/access 3",
        "gpu0/gi0/ci1/access 5",
        "gpu3/gi3/ci3/access 439",
        "gpu6/gi11/ci7/access 920",
        "gpu31/gi14/ci7/access 4322",
    ],
)
def test_mig_minors_has_the_lines_of_a_real_one(seed: Path, line: str) -> None:
    lines = (seed / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()

    assert line in lines
    assert len(lines) == 4322


@pytest.mark.parametrize("name", [name for name, node in NODES.items() if node.capabilities and node.gpus])
def test_each_access_file_stands_in_mig_minors(tmp_path: Path, name: str) -> None:
    build(tmp_path, name)
    text = (tmp_path / "proc/driver/nvidia-caps/mig-minors").read_text()
    minors = dict(line.split() for line in text.splitlines())

    tree = tmp_path / "proc/driver/nvidia/capabilities"
    for path in tree.rglob("access"):
        key = str(path.relative_to(tree)).replace("/mig/", "/")
        assert path.read_text().split()[1] == minors[key]


def test_information_separates_by_spaces_and_tabs_as_the_driver_does(seed: Path) -> None:
    lines = (seed / "proc/driver/nvidia/gpus/0000:18:00.0/information").read_text().split("\n")

    assert lines[0] == "Model: \t\t NVIDIA H100 NVL"
    assert lines[1] == "IRQ:   \t\t 10"
    assert re.fullmatch(r"GPU UUID: \t GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", lines[2])
    assert lines[-6:] == [
        "DMA Mask: \t 0xfffffffffffff",
        "Bus Location: \t 0000:18:00.0",
        "Device Minor: \t 0",
        "GPU Firmware: \t 580.126.09",
        "GPU Excluded:\t No",
        "",
    ]


def test_devices_lists_one_major_several_times(seed: Path) -> None:
    characters, blocks = (seed / "proc/devices").read_text().split("\n\n")

    assert characters.startswith("Character devices:\n  1 mem\n")
    for line in ("195 nvidia", "195 nvidia-modeset", "195 nvidiactl", "237 nvidia-caps", "510 nvidia-uvm"):
        assert line in characters.split("\n")
    assert "234 nvidia-caps-imex-channels" in characters
    assert blocks.startswith("Block devices:\n")


def test_an_old_driver_has_one_name_and_no_capabilities(tmp_path: Path) -> None:
    build(tmp_path, "old-devices")

    text = (tmp_path / "proc/devices").read_text()
    assert re.findall(r"195 .*", text) == ["195 nvidia-frontend"]
    assert "nvidia-caps\n" not in text
    assert not (tmp_path / "proc/driver/nvidia/capabilities").exists()


# ---- device nodes ----


@root_only
def test_nodes_have_the_numbers_and_modes_of_the_report(seed: Path) -> None:
    found = {}
    for path in (seed / "dev").rglob("nvidia*"):
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode):
            numbers = (os.major(status.st_rdev), os.minor(status.st_rdev))
            found[path.name] = (*numbers, stat.S_IMODE(status.st_mode), status.st_uid)

    assert found.pop("nvidia-cap1") == (237, 1, 0o400, 0)
    assert found.pop("nvidia0") == (195, 0, 0o666, 0)
    assert found.pop("nvidiactl") == (195, 255, 0o666, 0)
    assert found.pop("nvidia-modeset") == (195, 254, 0o666, 0)
    assert found.pop("nvidia-uvm") == (510, 0, 0o666, 0)
    assert found.pop("nvidia-uvm-tools") == (510, 1, 0o666, 0)
    pairs = (66, 67, 75, 76, 84, 85, 93, 94, 102, 103, 111, 112, 120, 121)
    assert found == {f"nvidia-cap{minor}": (237, minor, 0o444, 0) for minor in (2, *pairs)}


# ---- majors of the machine ----


def test_majors_in_are_those_of_character_devices() -> None:
    text = (
        "Character devices:\n  1 mem\n  4 tty\n  4 ttyS\n195 nvidia\n\nBlock devices:\n  7 loop\n259 blkext\n"
    )

    assert majors_in(text) == {1, 4, 195}


@pytest.mark.parametrize(
    "avoid", [{237}, {237, 511}, {510, 511}, {237, 510, 511}, {234, 237}, {234, 237, 510, 511, 509}]
)
def test_dynamic_majors_go_around_the_machines_and_each_other(avoid: set[int]) -> None:
    node = around(NODES["seed"], avoid)

    majors = [node.caps_major, node.uvm_major, node.imex_major]
    assert len(set(majors)) == 3
    assert not avoid & set(majors)
    kept = {"caps_major": 237, "uvm_major": 510, "imex_major": 234}
    assert all(getattr(node, field) == major for field, major in kept.items() if major not in avoid)


def test_what_is_missing_is_not_moved() -> None:
    assert around(NODES["no-uvm"], {237}).uvm_major == 0


def test_a_move_is_told() -> None:
    node = around(NODES["seed"], {237})

    assert moved(NODES["seed"], NODES["seed"]) == []
    assert moved(NODES["seed"], node) == [
        "nvidia-caps is major 511 here, not 237: a driver of this machine has that"
    ]


# ---- building ----


@pytest.mark.parametrize("name", NODES)
def test_each_node_can_be_built_and_built_again(tmp_path: Path, name: str) -> None:
    first = build(tmp_path, name)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

    assert build(tmp_path, name) == first == NODES[name]
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_nothing_of_an_earlier_node_stays(seed: Path) -> None:
    build(seed, Node(driver=""))

    assert list((seed / "dev").iterdir()) == []
    assert not (seed / "proc/driver").exists()
    assert not (seed / "driver").exists()


def test_what_is_no_simulated_node_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mine").touch()

    with pytest.raises(FileExistsError):
        build(tmp_path, "seed")

    assert [path.name for path in tmp_path.rglob("*")] == ["proc", "mine"]


# ---- the command ----


def test_the_command_says_how_to_use_the_node(tmp_path: Path) -> None:
    done = command("seed", str(tmp_path / "node"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        f"GPUSHIM_CONFIG={tmp_path}/node/config.toml GPUSHIM_STATE={tmp_path}/node/state gpushim node"
    )
    major = int(re.findall(r"(\d+) nvidia-caps\n", (tmp_path / "node/proc/devices").read_text())[0])
    assert major not in fakenode.real_majors()


def test_the_command_never_touches_the_machines_own_trees(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()

    done = command("seed", str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path}/dev: is there and not of a simulated node\n"


def test_an_unknown_name_lists_the_known() -> None:
    done = command("nonsense", "nowhere")

    assert done.returncode == 2
    assert done.stderr.endswith(f"names: {', '.join(NODES)}\n")
