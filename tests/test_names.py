"""gpushim.names and gpushim.identity: MIG devices by name, on a simulated node with a real NVML library."""

import shutil
import time
from pathlib import Path

import pytest

from gpushim import identity
from gpushim.errors import ShimError
from gpushim.resolution import Resolution, resolve
from tests import fakenode
from tests.test_node import Host

NODE = fakenode.NODES["eight-h100-mixed"]
GPU3, GPU6 = NODE.gpus[3], NODE.gpus[6]
FIRST = fakenode.mig_uuid(GPU6, 7, 0)


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    marker = request.node.get_closest_marker("node")
    out = Host(tmp_path, marker.args[0] if marker else "eight-h100-mixed")
    out.settings["gpushim.driver-timeout"] = 1
    return out


def resolved(host: Host, devices: str) -> Resolution:
    config = {"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={devices}", "NVIDIA_DRIVER_CAPABILITIES=utility"]}}
    return resolve(config, host.settings, "runc", str(host.directory / "state"))


def given(host: Host, devices: str) -> list[str]:
    selection = resolved(host, devices).selection
    assert selection is not None
    assert selection.devices[0].path == "/dev/nvidiactl"
    return [
        device.path.removeprefix("/dev/").removeprefix("nvidia-caps/nvidia-")
        for device in selection.devices[1:]
    ]


def cap(gpu: fakenode.Gpu, gi: int, ci: int | None = None) -> str:
    return f"cap{fakenode.capability_minor(gpu.minor, gi, ci)}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(FIRST, id="uuid"),
        pytest.param(FIRST.upper().replace("MIG", "MIG"), id="uuid-in-capitals"),
        pytest.param("6:0", id="index"),
        pytest.param("06:00", id="index-with-zeros"),
        pytest.param(f"MIG-{fakenode.gpu_uuid(GPU6)}/7/0", id="old-form"),
        pytest.param(f"{FIRST},6:0,MIG-{fakenode.gpu_uuid(GPU6)}/7/0", id="one-device-in-three-spellings"),
    ],
)
def test_a_mig_device_is_parent_and_both_capabilities(host: Host, name: str) -> None:
    assert given(host, name) == ["nvidia6", cap(GPU6, 7), cap(GPU6, 7, 0)]


def test_compute_instances_of_one_gpu_instance_are_apart(host: Host) -> None:
    """3:0, 3:1 and 3:2 are the compute instances of GPU instance 1; nobody gets a neighbour's."""
    assert given(host, "3:1") == ["nvidia3", cap(GPU3, 1), cap(GPU3, 1, 1)]
    assert given(host, "3:3,3:0") == ["nvidia3", cap(GPU3, 1), cap(GPU3, 1, 0), cap(GPU3, 5), cap(GPU3, 5, 0)]


def test_a_whole_gpu_takes_in_its_parts(host: Host) -> None:
    assert given(host, "3:1,3") == given(host, "3")
    assert given(host, "0,3:1") == ["nvidia0", "nvidia3", cap(GPU3, 1), cap(GPU3, 1, 1)]


def test_the_uuid_of_a_gpu_in_mig_mode_is_all_of_it(host: Host) -> None:
    assert given(host, fakenode.gpu_uuid(GPU3)) == given(host, "3")


@pytest.mark.node("index-is-not-minor")
def test_the_minor_of_the_parent_is_the_kernels(host: Host) -> None:
    gpu = fakenode.NODES["index-is-not-minor"].gpus[2]

    assert given(host, "2:0") == ["nvidia5", cap(gpu, 7), cap(gpu, 7, 0)]


@pytest.mark.node("uuid-missing")
def test_a_uuid_that_proc_has_not_yet_is_nvmls_to_tell(host: Host) -> None:
    gpus = fakenode.NODES["uuid-missing"].gpus

    assert given(host, fakenode.gpu_uuid(gpus[1])) == ["nvidia1"]


def test_whole_gpus_never_ask_nvml(host: Host) -> None:
    fakenode.sabotage(host.directory, "hang")
    started = time.monotonic()

    for name in ("all", "0", fakenode.gpu_uuid(GPU3), f"MIG-{fakenode.gpu_uuid(GPU6)}/7/0", "none"):
        given(host, name)

    assert time.monotonic() - started < 1


UNKNOWN = "MIG-00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(UNKNOWN, f"GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '{UNKNOWN}'\nhint: this node has 0 (GPU-", id="uuid"),
        pytest.param("6:7", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '6:7'\nhint: ", id="mig-index"),
        pytest.param("0:0", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '0:0'\nhint: ", id="gpu-without-mig"),
        pytest.param("9:0", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '9:0'\nhint: ", id="gpu-index"),
        pytest.param("6:", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '6:'\nhint: ", id="half"),
        pytest.param("6:0:0", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '6:0:0'\nhint: ", id="three-parts"),
        pytest.param("-1:0", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '-1:0'\nhint: ", id="negative"),
        pytest.param("MIG-", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'MIG-'\nhint: ", id="nothing-behind"),
        pytest.param("MIG-GPU-x/7/0", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'MIG-GPU-x/7/0'\nhint: ", id="old-form-of-no-gpu"),
        pytest.param(f"MIG-{fakenode.gpu_uuid(GPU6)}/1/0", f"GS0206: NVIDIA_VISIBLE_DEVICES: 'MIG-{fakenode.gpu_uuid(GPU6)}/1/0': GPU 6 has no instance 1 with a compute instance 0\nhint: ", id="old-form-no-instance"),
        pytest.param(f"MIG-{fakenode.gpu_uuid(GPU6)}/7", f"GS0206: NVIDIA_VISIBLE_DEVICES: 'MIG-{fakenode.gpu_uuid(GPU6)}/7': GPU 6 has no instance 7 with a compute instance -1\nhint: ", id="old-form-cut"),
        pytest.param("mig-1:g.5gb", "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'mig-1:g.5gb'\nhint: ", id="other-text"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_named(host: Host, name: str, message: str) -> None:
    with pytest.raises(ShimError) as raised:
        resolved(host, name)

    assert str(raised.value).startswith(message)


def test_the_known_mig_devices_are_listed(host: Host) -> None:
    with pytest.raises(ShimError) as raised:
        resolved(host, UNKNOWN)

    assert f"6:0 ({FIRST})" in raised.value.hint


def test_an_instance_that_goes_between_nvmls_answer_and_its_files_is_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    asked = identity.read_identities

    def asked_then_destroyed(settings: dict[str, object]) -> list[identity.NvmlDevice]:
        out = asked(settings)
        shutil.rmtree(host.directory / "proc/driver/nvidia/capabilities/gpu6/mig/gi7")
        return out

    monkeypatch.setattr(identity, "read_identities", asked_then_destroyed)

    with pytest.raises(ShimError) as raised:
        resolved(host, FIRST)

    assert raised.value.id == "GS0206"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["hang"], "GS0407: NVML: no answer in 1 s\nhint: ", id="hangs"),
        pytest.param(["hang-gpu 0"], "GS0407: NVML: no answer in 1 s\nhint: ", id="hangs-at-a-gpu"),
        pytest.param(["die"], "GS0408: NVML: {library} crashed or answered nonsense", id="crashes"),
        pytest.param(["init 9"], "GS0409: NVML: {library}: the driver is not loaded", id="not-loaded"),
        pytest.param(["init 18"], "GS0409: NVML: {library}: the library is of another version than the driver", id="other-version"),
        pytest.param(["init 77"], "GS0409: NVML: {library}: NVML error 77", id="another-error"),
        pytest.param(["lost 6"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device", id="its-gpu-is-lost"),
        pytest.param(["long-uuid"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device", id="unterminated-text"),
    ],
)  # fmt: skip
def test_a_sick_nvml_is_told_inside_the_deadline(host: Host, lines: list[str], message: str) -> None:
    fakenode.sabotage(host.directory, *lines)
    (library,) = (host.directory / "driver").rglob("libnvidia-ml.so.1")
    started = time.monotonic()

    with pytest.raises(ShimError) as raised:
        resolved(host, FIRST)

    assert str(raised.value).startswith(message.format(library=library))
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("lines", [["lost 1"], ["count 1000000"], ["count -1"]], ids=lambda lines: lines[0])
def test_what_is_wrong_with_other_gpus_costs_nothing(host: Host, lines: list[str]) -> None:
    fakenode.sabotage(host.directory, *lines)

    assert given(host, FIRST) == ["nvidia6", cap(GPU6, 7), cap(GPU6, 7, 0)]


def test_one_uuid_on_two_devices_is_nobodys(host: Host) -> None:
    (text,) = (host.directory / "driver").rglob("nvml.txt")
    other = fakenode.mig_uuid(GPU6, 8, 0)
    text.write_text(text.read_text().replace(other, FIRST))

    with pytest.raises(ShimError) as raised:
        resolved(host, FIRST)

    assert str(raised.value) == f"GS0410: NVIDIA_VISIBLE_DEVICES: NVML knows 2 devices by the name '{FIRST}'"


@pytest.mark.parametrize("state", ["missing", "no-library", "another-library"])
def test_a_library_that_is_none(host: Host, state: str) -> None:
    (library,) = (host.directory / "driver").rglob("libnvidia-ml.so.1")
    library.unlink()
    if state == "no-library":
        library.write_text("not a library")
    elif state == "another-library":
        shutil.copy(next(Path("/").glob("lib/*-linux-gnu/libm.so.6")), library)

    with pytest.raises(ShimError) as raised:
        resolved(host, FIRST)

    assert raised.value.id == "GS0409"
    expected = "is too old to know MIG" if state == "another-library" else "cannot be loaded"
    assert str(raised.value).endswith(expected)


def test_the_root_itself_is_the_loaders(tmp_path: Path) -> None:
    assert identity.find_library("/") == identity.LIBRARY
    assert identity.find_library(f"{tmp_path}/") == f"{tmp_path}/usr/lib/{identity.LIBRARY}"
