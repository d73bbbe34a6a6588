"""`gpushim node prepare` and `gpushim node --nvml`."""

import configparser
import json
import os
from pathlib import Path

import pytest

from tests import fakenode
from tests.conftest import Shim

CHECKOUT = Path(__file__).parent.parent.parent

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")


def steps(shim: Shim, *options: str) -> list[tuple[str, str]]:
    report = json.loads(shim.ctl("node", "prepare", "--json", *options).stdout)
    return [(step["what"], step["path"]) for step in report["steps"]]


@needs_root
def test_what_is_missing_is_made_and_what_is_right_stays(shim: Shim) -> None:
    dev = shim.root / "dev"
    steps(shim)  # the links
    (dev / "nvidia-caps/nvidia-cap1").unlink()
    (dev / "nvidia-uvm").unlink()
    os.mknod(dev / "nvidia-uvm", 0o020600, os.makedev(99, 0))
    os.chmod(dev / "nvidia0", 0o600)
    (dev / "char/237:2").unlink()
    (dev / "char/237:66").unlink()
    (dev / "char/237:66").symlink_to("../nowhere")

    dry = steps(shim, "--dry-run")
    done = steps(shim)

    assert done == dry == [
        ("mended", "/dev/nvidia-uvm"),
        ("made", "/dev/nvidia-caps/nvidia-cap1"),
        ("linked", "/dev/char/237:2"),
        ("linked", "/dev/char/237:66"),
    ]  # fmt: skip
    made = (dev / "nvidia-caps/nvidia-cap1").stat()
    assert (made.st_mode & 0o7777, os.major(made.st_rdev), os.minor(made.st_rdev)) == (0o400, 237, 1)
    assert os.major((dev / "nvidia-uvm").stat().st_rdev) == 510
    assert (dev / "nvidia0").stat().st_mode & 0o777 == 0o600
    assert steps(shim) == []
    assert shim.ctl("node").returncode == 0


@needs_root
def test_an_empty_dev_is_filled(shim: Shim) -> None:
    (shim.root / "dev").rename(shim.root / "was")
    (shim.root / "dev").mkdir()

    done = shim.ctl("node", "prepare")

    assert done.returncode == 0
    assert "made     /dev/nvidia-caps/nvidia-cap2 237:2 mode 0444" in done.stdout
    assert shim.ctl("node").returncode == 0


@needs_root
def test_nodes_of_an_administrator_who_looks_after_them_are_left(shim: Shim) -> None:
    (shim.root / "proc/driver/nvidia/params").write_text("ModifyDeviceFiles: 0\n")
    (shim.root / "dev/nvidia0").unlink()
    (shim.root / "dev/nvidia-caps/nvidia-cap2").unlink()

    done = shim.ctl("node", "prepare")

    assert done.returncode == 1
    assert "left     /dev/nvidia0 195:0 is missing, and NVreg_ModifyDeviceFiles is 0" in done.stdout
    assert (shim.root / "dev/nvidia-caps/nvidia-cap2").exists()


@pytest.mark.node("no-driver")
def test_without_a_driver_there_is_nothing_to_prepare(shim: Shim) -> None:
    done = shim.ctl("node", "prepare")

    assert done.returncode == 1
    assert done.stderr == "gpushim: GS0801: no NVIDIA driver is loaded\nhint: load it: modprobe nvidia\n"


@pytest.mark.node("no-uvm")
def test_a_module_of_another_node_is_not_loaded_here(shim: Shim) -> None:
    assert ("left", "nvidia-uvm") in steps(shim, "--dry-run")


def test_the_unit_runs_what_there_is() -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CHECKOUT / "deploy/systemd/gpushim-node-prepare.service")

    assert unit["Service"]["ExecStart"].split()[1:] == ["node", "prepare"]
    assert unit["Service"]["Type"] == "oneshot"
    assert "containerd.service" in unit["Unit"]["Before"]


# ---- NVML beside the kernel ----


@pytest.mark.node("eight-h100-mixed")
def test_nvml_tells_names_and_memory(shim: Shim) -> None:
    done = shim.ctl("node", "--nvml", "--json")

    report = json.loads(done.stdout)
    gpus = report["nvml"]["gpus"]
    assert report["nvml"]["driver"] == "580.126.09"
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA H100 80GB HBM3"] * 8
    assert gpus[0]["memory"] == 81559 << 20
    assert gpus[6]["memory"] is None  # with MIG, and nobody may monitor
    assert [mig["gi"] for mig in gpus[6]["migs"]] == list(range(7, 14))
    assert [one for one in report["problems"] if "NVML" in one] == []
    assert "MIG device 0 (instance 7, compute 0)" in shim.ctl("node", "--nvml").stdout


def test_what_nvml_sees_otherwise_is_a_problem(shim: Shim) -> None:
    (text,) = (shim.root / "driver").rglob("nvml.txt")
    text.write_text(text.read_text().replace("gpu 0 0 GPU-", "gpu 0 4 GPU-f"))

    problems = json.loads(shim.ctl("node", "--nvml", "--json").stdout)["problems"]

    assert "GPU 0: minor 0 to the kernel, 4 to NVML" in problems
    assert any(one.startswith("GPU 0: UUID GPU-") for one in problems)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hang", "GS0802: NVML: no answer in 1 s"),
        ("init 9", "GS0803: NVML: "),
        ("die", "GS0803: NVML: exit status -6"),
    ],
)
def test_an_nvml_that_is_sick_is_told(shim: Shim, line: str, message: str) -> None:
    shim.add("[gpushim]\ndriver-timeout = 1")
    fakenode.sabotage(shim.root, line)

    done = shim.ctl("node", "--nvml")

    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushim: {message}")


@pytest.mark.node("eight-gpus")
def test_a_lost_gpu_is_named(shim: Shim) -> None:
    fakenode.sabotage(shim.root, "lost 3")

    problems = json.loads(shim.ctl("node", "--nvml", "--json").stdout)["problems"]

    assert "GPU 3: NVML: GPU is lost" in problems
