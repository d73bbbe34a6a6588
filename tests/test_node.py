"""gpushim.node on simulated nodes: what the kernel's files say, and how long an answer holds."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from gpushim import node
from gpushim.node import Node, read_capabilities, read_majors, read_node
from gpushim.selection import Device
from tests import fakenode
from tests.defaults import settings


class Host:
    """A simulated node and the settings that point at it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        fakenode.build(directory, name)
        self.settings: dict[str, Any] = settings()
        self.settings |= {
            f"gpushim.roots.{root}": str(directory / root) for root in ("proc", "sys", "driver")
        }
        self.settings["gpushim.roots.dev"] = str(directory)
        self.gpus = directory / "proc/driver/nvidia/gpus"
        self.cache = directory / "state/node.json"

    def read(self, *, patient: bool = False) -> Node:
        found = read_node(self.settings, str(self.directory / "state"), patient=patient)
        assert found is not None
        read_capabilities(found, management=True)
        return found


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    marker = request.node.get_closest_marker("node")
    return Host(tmp_path, marker.args[0] if marker else "seed")


def test_the_seeds_node(host: Host) -> None:
    found = host.read()

    (gpu,) = found.gpus
    assert (gpu.index, gpu.minor, gpu.bus, gpu.model) == (0, 0, "0000:18:00.0", "NVIDIA H100 NVL")
    assert found.majors["nvidia-caps"] == 237
    assert found.config is not None and (found.config.minor, found.config.mode) == (1, 0o400)
    assert found.monitor is not None and (found.monitor.minor, found.monitor.mode) == (2, 0o444)
    minors = [
        (gi, i.access.minor, i.computes[0].minor) for gi, i in sorted(gpu.instances.items()) if i.access
    ]
    assert minors == [(gi, 3 + 9 * gi, 4 + 9 * gi) for gi in range(7, 14)]


@pytest.mark.parametrize("name", ["caps-235", "caps-236", "caps-508"])
def test_majors_are_what_the_kernel_says(tmp_path: Path, name: str) -> None:
    assert Host(tmp_path, name).read().majors["nvidia-caps"] == int(name.removeprefix("caps-"))


@pytest.mark.parametrize(
    ("text", "majors"),
    [
        pytest.param("195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n", {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195}, id="several-lines-for-one-major"),
        pytest.param("195 nvidia-frontend\n", {"nvidia-frontend": 195}, id="before-545"),
        pytest.param("234 nvidia-caps-imex-channels\n", {"nvidia-caps-imex-channels": 234}, id="a-name-with-ours-as-its-start"),
        pytest.param("1 mem\nnonsense\n\n x nvidia\n", {}, id="nonsense"),
        pytest.param("Block devices:\n195 nvidia\n", {}, id="block-devices-do-not-count"),
    ],
)  # fmt: skip
def test_read_majors(tmp_path: Path, text: str, majors: dict[str, int]) -> None:
    (tmp_path / "devices").write_text("Character devices:\n" + text)

    assert read_majors(str(tmp_path)) == majors


@pytest.mark.node("index-is-not-minor")
def test_an_index_is_the_place_in_pci_order(host: Host) -> None:
    assert [(gpu.index, gpu.minor) for gpu in host.read().gpus] == [(0, 3), (1, 0), (2, 5)]
    assert list(host.read().gpus[2].instances) == [7]


@pytest.mark.node("eight-digit-domain")
def test_a_domain_of_eight_digits_sorts_as_a_number(host: Host) -> None:
    assert [gpu.bus for gpu in host.read().gpus] == ["0000:65:00.0", "00010000:00:00.0"]


@pytest.mark.node("gpu-excluded")
def test_an_excluded_gpu_has_no_index(host: Host) -> None:
    assert [(gpu.index, gpu.minor) for gpu in host.read().gpus] == [(0, 0), (1, 2)]


@pytest.mark.node("uuid-missing")
def test_a_uuid_that_is_missing_is_looked_for_again(host: Host) -> None:
    assert host.read().gpus[1].uuid == ""
    until = json.loads(host.cache.read_text())["until"]

    assert 0 < until - time.time() <= node.RETRY_UUID


@pytest.mark.node("no-gpu")
def test_a_driver_without_gpus(host: Host) -> None:
    found = host.read()

    assert found.gpus == []
    assert found.monitor is not None


@pytest.mark.node("old-devices")
def test_a_driver_from_before_mig(host: Host) -> None:
    found = host.read()

    assert (found.gpu_major(), found.monitor, found.config) == (195, None, None)
    assert [gpu.instances for gpu in found.gpus] == [{}, {}]


def test_no_driver(tmp_path: Path) -> None:
    host = Host(tmp_path, "no-driver")

    assert read_node(host.settings, str(tmp_path / "state"), patient=False) is None


@pytest.mark.node("mig-no-instance")
def test_mig_without_instances_is_a_whole_gpu(host: Host) -> None:
    assert [gpu.instances for gpu in host.read().gpus] == [{}, {}]


@pytest.mark.parametrize(
    "text", ["", "nonsense", "Device Minor: x\n", "Device Minor:\n", "Device Minor: -1\n", "\0" * 100]
)
def test_an_information_file_with_nonsense_is_that_gpus_fault(host: Host, text: str) -> None:
    (host.gpus / "0000:18:00.0/information").write_text(text)

    (gpu,) = host.read().gpus

    assert gpu.fault.startswith("its information file has no usable Device Minor")


@pytest.mark.node("eight-gpus")
@pytest.mark.parametrize(
    ("field", "was", "now"), [("minor", "Minor: \t 3\n", "Minor: \t 5\n"), ("uuid", "", "")]
)
def test_two_gpus_that_say_the_same_are_both_at_fault(host: Host, field: str, was: str, now: str) -> None:
    third, fifth = (host.gpus / f"0000:1{n}:00.0/information" for n in (3, 5))
    uuids = [path.read_text().partition("GPU UUID: \t ")[2].partition("\n")[0] for path in (third, fifth)]
    third.write_text(third.read_text().replace(was or uuids[0], now or uuids[1]))

    faults = {gpu.index: gpu.fault for gpu in host.read().gpus if gpu.fault}

    value = "5" if field == "minor" else uuids[1]
    assert faults == dict.fromkeys((3, 5), f"another GPU has the same {field}, {value}")


# ---- how long it holds ----


def test_gpus_are_read_once_for_one_load_of_the_driver(host: Host) -> None:
    first = host.read().gpus[0].uuid
    (host.gpus / "0000:18:00.0/information").write_text("Device Minor: 9\n")

    assert (host.read().gpus[0].uuid, host.read().gpus[0].minor) == (first, 0)


def test_instances_are_read_each_time(host: Host) -> None:
    host.read()
    shutil.rmtree(host.directory / "proc/driver/nvidia/capabilities/gpu0/mig/gi13")

    assert sorted(host.read().gpus[0].instances) == [7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("change", ["boot", "module", "gpu-gone", "gpu-new", "cache-of-another-node"])
def test_another_load_of_the_driver_is_read_anew(host: Host, change: str) -> None:
    host.read()
    text = (
        (host.gpus / "0000:18:00.0/information")
        .read_text()
        .replace("Device Minor: \t 0", "Device Minor: \t 9")
    )
    (host.gpus / "0000:18:00.0/information").write_text(text)
    if change == "boot":
        (host.directory / "proc/sys/kernel/random/boot_id").write_text("another\n")
    elif change == "module":
        (host.directory / "sys/module/nvidia").rename(host.directory / "sys/module/was")
        (host.directory / "sys/module/nvidia").mkdir()
    elif change == "gpu-gone":
        (host.gpus / "0000:18:00.0").rename(host.gpus / "0000:19:00.0")
    elif change == "gpu-new":
        shutil.copytree(host.gpus / "0000:18:00.0", host.gpus / "0000:17:00.0")
    else:
        host.cache.write_text(host.cache.read_text().replace(str(host.directory), "/elsewhere"))

    assert host.read().gpus[0].minor == 9


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"load": 1}', b"\xff" * 50, b'{"load":[],"until":0,"timeout":1,"gpus":[]}'],
)
def test_nonsense_in_the_cache_is_read_anew(host: Host, data: bytes) -> None:
    host.read()
    host.cache.write_bytes(data)

    assert host.read().gpus[0].minor == 0


def test_a_cache_that_others_can_write_does_not_count(host: Host) -> None:
    host.read()
    host.cache.write_text(host.cache.read_text().replace('"minor":0', '"minor":9'))
    assert host.read().gpus[0].minor == 9  # it is the cache that is read

    host.cache.chmod(0o666)

    assert host.read().gpus[0].minor == 0


def test_without_a_place_for_state_all_is_read_each_time(host: Host) -> None:
    found = read_node(host.settings, "/proc/none", patient=False)

    assert found is not None and found.gpus[0].minor == 0


# ---- GPUs that are sick ----


@pytest.mark.node("gpu-hangs")
def test_a_gpu_that_hangs_is_waited_for_by_who_can_wait(host: Host) -> None:
    host.settings["gpushim.driver-timeout"] = 0.6
    started = time.monotonic()

    quick = host.read()
    after_quick = time.monotonic() - started
    patient = host.read(patient=True)
    after_patient = time.monotonic() - started
    again = host.read(patient=True)

    assert [gpu.fault for gpu in quick.gpus] == ["", "", "no answer in 0.25 s", ""]
    assert quick.gpus[2].late and not quick.gpus[0].late
    assert [gpu.fault for gpu in patient.gpus] == ["", "", "no answer in 0.6 s", ""]
    assert again.gpus[2].fault == "no answer in 0.6 s"
    assert 0.2 < after_quick < 0.5 < after_patient
    assert time.monotonic() - started - after_patient < 0.2  # from the cache, for a minute


@pytest.mark.node("gpu-off-the-bus")
def test_a_gpu_off_the_bus_is_one_gpus_fault(host: Host) -> None:
    found = host.read()

    assert [bool(gpu.fault) for gpu in found.gpus] == [False, False, True, False]
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3]
    assert 0 < json.loads(host.cache.read_text())["until"] - time.time() <= node.RETRY


# ---- the host's nodes ----


def test_look_up_takes_the_hosts_node_or_the_kernels_word(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    found = host.read()
    os.chmod(host.directory / "dev/nvidia0", 0o660)
    os.chown(host.directory / "dev/nvidia0", 7, 44)
    (host.directory / "dev/nvidia-caps/nvidia-cap2").unlink()
    (host.directory / "dev/nvidiactl").unlink()
    (host.directory / "dev/nvidiactl").write_text("not a node")
    params = "DeviceFileMode: 432\nDeviceFileUID: 1\nDeviceFileGID: 2\nx: 4294967295\n"
    (host.directory / "proc/driver/nvidia/params").write_text(params)
    devices = [
        Device("/dev/nvidia0", 195, 0, "rw", "a test"),
        Device("/dev/nvidia-caps/nvidia-cap2", 237, 2, "r", "a test", 0o444),
        Device("/dev/nvidiactl", 195, 255, "rw", "a test"),
    ]

    node.look_up(found, devices)

    assert [(d.host, oct(d.mode), d.uid, d.gid) for d in devices] == [
        ((195, 0), "0o660", 7, 44),
        (None, "0o444", 0, 0),
        (None, "0o660", 1, 2),
    ]


def test_many_nodes_are_looked_up_as_few_are(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    found = host.read()
    many = [Device("/dev/nvidia0", 195, 0, "rw", "a test") for _ in range(100)]
    few = [Device("/dev/nvidia0", 195, 0, "rw", "a test"), Device("/dev/none", 1, 1, "r", "a test")]

    node.look_up(found, many)
    node.look_up(found, few)

    assert {(d.host, d.mode) for d in many} == {((195, 0), 0o666)}
    assert few[0].host == (195, 0) and few[1].host is None


@pytest.mark.node("eight-gpus")
def test_drm_nodes_are_those_that_sysfs_names(host: Host) -> None:
    found = host.read()
    bus = found.gpus[2].bus
    drm = host.directory / f"sys/bus/pci/devices/{bus}/drm"
    for odd in ("card", "cardx", "version", "card1234567", "controlD64"):
        (drm / odd).mkdir()
    shutil.rmtree(host.directory / f"sys/bus/pci/devices/{found.gpus[3].bus}/drm")

    node.read_drm(found)

    minor = found.gpus[2].minor
    assert found.gpus[2].drm == [f"card{minor}", f"renderD{128 + minor}"]
    assert found.gpus[3].drm == []
    assert node.drm_minor(f"renderD{128 + minor}") == 128 + minor
