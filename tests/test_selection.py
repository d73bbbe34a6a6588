"""gpushim.selection: which devices a request comes to on a node."""

from typing import Any

import pytest

from gpushim.errors import ShimError
from gpushim.node import Capability, Gpu, Instance, Node, Roots
from gpushim.request import CAPABILITIES, Request
from gpushim.selection import Device, Selection, must_wait, select
from tests.defaults import settings

MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-caps": 237, "nvidia-uvm": 510}
UUID = "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3"


def node(*gpus: Gpu, **majors: int) -> Node:
    out = Node(Roots(settings()), majors or MAJORS)
    out.gpus = list(gpus)
    out.config = Capability(1, 0o400, "")
    out.monitor = Capability(2, 0o444, "")
    return out


def gpu(index: int, minor: int | None = None, *instances: int, uuid: str | None = None, fault: str = "") -> Gpu:  # fmt: skip
    minor = index if minor is None else minor
    uuid = f"{UUID}{index}" if uuid is None else uuid
    out = Gpu(index, f"0000:0{index}:00.0", minor, uuid, "NVIDIA H100", fault)
    for gi in instances:
        instance = out.instances[gi] = Instance()
        base = 3 + 135 * minor + 9 * gi
        instance.access = Capability(base, 0o444, "")
        instance.computes[0] = Capability(base + 1, 0o444, "")
    return out


def request(*devices: str, **more: Any) -> Request:
    return Request(devices, "NVIDIA_VISIBLE_DEVICES", **more)


def selected(request: Request, node: Node) -> Selection:
    return select(request, node, [])


def paths(selection: Selection) -> list[str]:
    return [device.path.removeprefix("/dev/") for device in selection.devices]


MONITORS = {"mig-monitor": "NVIDIA_MIG_MONITOR_DEVICES"}
BOTH = MONITORS | {"mig-config": "NVIDIA_MIG_CONFIG_DEVICES"}
CONTROL = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]


def test_all_is_every_gpu_in_order() -> None:
    assert paths(selected(request("all"), node(gpu(0), gpu(1)))) == [*CONTROL, "nvidia0", "nvidia1"]


@pytest.mark.parametrize(
    ("capabilities", "given"),
    [
        pytest.param(("graphics",), ["dri/card0", "dri/renderD128"], id="graphics"),
        pytest.param(("display", "utility"), ["dri/card0", "dri/renderD128"], id="display"),
        pytest.param(("compute", "utility"), [], id="neither"),
    ],
)
def test_drm_nodes_come_with_graphics_and_with_whole_gpus_alone(
    capabilities: tuple[str, ...], given: list[str]
) -> None:
    whole, other, split = gpu(0), gpu(1), gpu(2, 2, 7)
    whole.drm, other.drm, split.drm = (
        ["card0", "renderD128"],
        ["card1", "renderD129"],
        ["card2", "renderD130"],
    )

    found = selected(request("0", "2", capabilities=capabilities), node(whole, other, split))

    drm = {
        device.path: (device.major, device.minor, device.access)
        for device in found.devices
        if "/dri/" in device.path
    }
    assert list(drm) == [f"/dev/{name}" for name in given]
    assert list(drm.values()) == [(226, 0, "rw"), (226, 128, "rw")][: len(given)]


def test_none_is_the_driver_without_a_gpu() -> None:
    assert paths(selected(request(), node(gpu(0)))) == CONTROL


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(["1", "0"], id="indices"),
        pytest.param([f"{UUID}1", f"{UUID}0"], id="uuids"),
        pytest.param(["1", f"{UUID}1", "01", f"{UUID}0"], id="one-device-in-several-spellings"),
        pytest.param([f"{UUID}1".upper().replace("GPU", "GPU"), "0"], id="uuid-in-capitals"),
    ],
)
def test_a_device_is_given_once_and_in_the_order_of_gpus(devices: list[str]) -> None:
    assert paths(selected(request(*devices), node(gpu(0), gpu(1), gpu(2)))) == [
        *CONTROL,
        "nvidia0",
        "nvidia1",
    ]


def test_an_index_is_not_a_minor() -> None:
    assert paths(selected(request("0"), node(gpu(0, 5), gpu(1, 0)))) == [*CONTROL, "nvidia5"]


def test_a_gpu_comes_with_its_instances_and_with_no_other_gpus() -> None:
    selection = selected(request("1"), node(gpu(0, 0, 7), gpu(1, 1, 1, 2)))

    assert paths(selection) == [
        *CONTROL,
        "nvidia1",
        "nvidia-caps/nvidia-cap147",
        "nvidia-caps/nvidia-cap148",
        "nvidia-caps/nvidia-cap156",
        "nvidia-caps/nvidia-cap157",
    ]


def test_access_is_what_each_kind_needs() -> None:
    selection = selected(request("all", extras=MONITORS), node(gpu(0, 0, 7)))

    assert {d.path: (d.major, d.minor, d.access) for d in selection.devices} == {
        "/dev/nvidiactl": (195, 255, "rw"),
        "/dev/nvidia-uvm": (510, 0, "rw"),
        "/dev/nvidia-uvm-tools": (510, 1, "rw"),
        "/dev/nvidia0": (195, 0, "rw"),
        "/dev/nvidia-caps/nvidia-cap66": (237, 66, "r"),
        "/dev/nvidia-caps/nvidia-cap67": (237, 67, "r"),
        "/dev/nvidia-caps/nvidia-cap2": (237, 2, "r"),
    }


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        pytest.param(("utility",), ["nvidiactl"], id="utility"),
        pytest.param(("compute",), CONTROL, id="compute"),
        pytest.param(("graphics",), ["nvidiactl", "nvidia-modeset"], id="graphics"),
        pytest.param(("display",), ["nvidiactl", "nvidia-modeset"], id="display"),
        pytest.param(CAPABILITIES, [*CONTROL, "nvidia-modeset"], id="all"),
    ],
)
def test_control_nodes_follow_the_capabilities(capabilities: tuple[str, ...], expected: list[str]) -> None:
    assert paths(selected(request(capabilities=capabilities), node())) == expected


def test_what_is_left_out_is_said() -> None:
    selection = selected(request(capabilities=("utility",)), node())

    assert selection.withheld == [
        ("/dev/nvidia-uvm", "NVIDIA_DRIVER_CAPABILITIES does not name compute"),
        ("/dev/nvidia-modeset", "NVIDIA_DRIVER_CAPABILITIES names neither graphics nor display"),
    ]
    assert selection.warnings == []


def test_modules_that_are_not_loaded_are_a_warning_with_the_command() -> None:
    selection = selected(request(capabilities=CAPABILITIES), node(nvidia=195, nvidiactl=195))

    assert paths(selection) == ["nvidiactl"]
    assert selection.warnings == [
        "the module nvidia-uvm is not loaded: CUDA finds no device until `modprobe nvidia-uvm`",
        "the module nvidia-modeset is not loaded: graphics needs `modprobe nvidia-modeset`",
    ]


def test_up_to_the_535_series_the_major_has_another_name() -> None:
    old = node(gpu(0), **{"nvidia-frontend": 195})

    selection = selected(request("0", capabilities=("display",)), old)

    assert paths(selection) == ["nvidiactl", "nvidia-modeset", "nvidia0"]
    assert {device.major for device in selection.devices} == {195}


def test_both_management_capabilities() -> None:
    selection = selected(request("all", extras=BOTH), node(gpu(0)))

    assert paths(selection)[-2:] == ["nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap1"]
    assert selection.later_instances


def test_monitoring_gives_no_rule_for_later_instances() -> None:
    assert not selected(request("all", extras=MONITORS), node(gpu(0))).later_instances


def test_a_driver_from_before_mig_gives_a_warning_and_nothing() -> None:
    old = node(gpu(0))
    old.monitor = None

    selection = selected(request("all", extras=MONITORS), old)

    assert paths(selection) == [*CONTROL, "nvidia0"]
    assert selection.warnings == [
        "NVIDIA_MIG_MONITOR_DEVICES: this driver has no capability mig/monitor: nothing is given"
    ]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        pytest.param(["7"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '7'", id="index-out-of-range"),
        pytest.param(["-1"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '-1'", id="negative"),
        pytest.param(["\u0660"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '\u0660'", id="a-digit-of-another-script"),
        pytest.param(["9" * 5000], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '999", id="a-huge-number"),
        pytest.param(["GPU-x"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'GPU-x'", id="unknown-uuid"),
        pytest.param(["GPU-"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'GPU-'", id="no-uuid"),
        pytest.param(["0", "gpu0"], "GS0205: NVIDIA_VISIBLE_DEVICES: unknown device 'gpu0'", id="other-text"),
    ],
)  # fmt: skip
def test_an_unknown_device_is_named_and_the_known_are_listed(devices: list[str], message: str) -> None:
    with pytest.raises(ShimError) as raised:
        selected(request(*devices), node(gpu(0), gpu(1, uuid="")))

    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(f"\nhint: this node has 0 ({UUID}0), 1 (no UUID yet)")


def test_a_node_without_gpus_says_so() -> None:
    with pytest.raises(ShimError) as raised:
        selected(request("0"), node())

    assert raised.value.hint == "this node has no GPU"
    assert paths(selected(request("all"), node())) == CONTROL


def test_a_gpu_that_cannot_be_read_costs_those_who_name_it() -> None:
    sick = node(gpu(0), gpu(1, -1, uuid="", fault="Input/output error"))

    everyone = selected(request("all"), sick)
    with pytest.raises(ShimError) as raised:
        selected(request("1"), sick)

    assert paths(selected(request("0"), sick)) == [*CONTROL, "nvidia0"]
    assert paths(everyone) == [*CONTROL, "nvidia0"]
    assert everyone.warnings == ["GPU 1 (0000:01:00.0) is left out: Input/output error"]
    assert str(raised.value).startswith(
        "GS0404: NVIDIA_VISIBLE_DEVICES: GPU 1 (0000:01:00.0): Input/output error"
    )


def test_an_instance_is_whole_or_an_error() -> None:
    broken = gpu(0, 0, 7)
    broken.instances[7].access = Capability(-1, -1, "holds no minor and mode")
    half = gpu(0, 0, 7)
    half.instances[7].access = None

    for one, message in (
        (broken, "GS0403: GPU 0 instance 7: its access file: holds no minor and mode"),
        (half, "GS0402: GPU 0 instance 7: has no access file in the kernel"),
    ):
        with pytest.raises(ShimError) as raised:
            selected(request("all"), node(one))
        assert str(raised.value) == message


def test_capabilities_without_a_major_are_an_error() -> None:
    with pytest.raises(ShimError) as raised:
        selected(request("all"), node(gpu(0, 0, 7), nvidia=195))

    assert str(raised.value) == "GS0405: GPU 0 instance 7: nvidia-caps has no major number in /proc/devices"


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(["all"], True, id="all"),
        pytest.param(["0"], False, id="another-index"),
        pytest.param(["1"], True, id="its-index"),
        pytest.param([f"{UUID}0"], False, id="a-known-uuid"),
        pytest.param(["GPU-unknown"], True, id="a-uuid-that-may-be-its"),
        pytest.param([], False, id="none"),
    ],
)
def test_only_who_asks_for_a_late_gpu_waits(devices: list[str], expected: bool) -> None:
    late = node(gpu(0), gpu(1, -1, uuid="", fault="no answer in 0.25 s"))

    assert must_wait(request(*devices), late) is expected
    assert not must_wait(request(*devices), node(gpu(0), gpu(1)))


def test_every_device_has_a_reason() -> None:
    selection = selected(request("all", extras=BOTH), node(gpu(0, 0, 7)))

    reasons: list[Device] = [device for device in selection.devices if not device.why]
    assert reasons == []
