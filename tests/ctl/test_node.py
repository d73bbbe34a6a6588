"""`gpushim node`: the host as the kernel tells it."""

import json
import os

import pytest

from tests.conftest import Shim


def test_the_seeds_node(shim: Shim) -> None:
    report = json.loads(shim.ctl("node", "--json").stdout)

    assert (report["schema"], report["driver"]) == (1, "580.126.09")
    assert report["nodes"][0]["path"] == "/dev/nvidiactl"
    assert [(one["name"], one["minor"]) for one in report["capabilities"]] == [
        ("mig/config", 1),
        ("mig/monitor", 2),
    ]
    gpu = report["gpus"][0]
    assert (gpu["index"], gpu["node"]["minor"]) == (0, 0)
    instances = [(i["id"], i["minor"], i["compute_instances"][0]["minor"]) for i in gpu["instances"]]
    assert instances == [(gi, 3 + 9 * gi, 4 + 9 * gi) for gi in range(7, 14)]


def test_people_get_a_tree(shim: Shim) -> None:
    done = shim.ctl("node")

    assert "GPU 0" in done.stdout
    assert "GPU instance 7  /dev/nvidia-caps/nvidia-cap66 237:66" in done.stdout
    assert "compute instance 0  /dev/nvidia-caps/nvidia-cap67 237:67" in done.stdout


@pytest.mark.node("no-driver")
def test_no_driver_is_said(shim: Shim) -> None:
    done = shim.ctl("node")

    assert done.returncode == 1
    assert "no NVIDIA driver is loaded" in done.stdout
    assert json.loads(shim.ctl("node", "--json").stdout)["gpus"] == []


def test_a_node_that_is_missing_is_a_problem(shim: Shim) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    assert shim.ctl("node").returncode == 0
    (shim.root / "dev/nvidia-caps/nvidia-cap2").unlink()

    done = shim.ctl("node")

    assert done.returncode == 1
    assert "/dev/nvidia-caps/nvidia-cap2 (237:2): missing" in done.stdout


@pytest.mark.node("gpu-off-the-bus")
def test_a_gpu_off_the_bus_is_named(shim: Shim) -> None:
    done = shim.ctl("node", "--json")

    report = json.loads(done.stdout)
    faults = [gpu["fault"] for gpu in report["gpus"] if gpu["fault"]]
    assert done.returncode == 1
    assert len(faults) == 1
    assert len(report["gpus"]) > 1
