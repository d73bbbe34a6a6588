"""gpushim.outside and gpushim.cdi_names: annotations, mounts, CDI names, IMEX channels."""

from pathlib import Path
from typing import Any

import pytest

from gpushim.errors import ShimError
from gpushim.request import Request, requested
from gpushim.resolution import resolve
from tests.defaults import settings
from tests.test_node import Host

ROOT = "/var/run/nvidia-container-devices"
MOUNTS: dict[str, Any] = {"accept_nvidia_visible_devices_as_volume_mounts": True}
ANNOTATIONS: dict[str, Any] = {"gpushim__annotation_prefixes": ["cdi.k8s.io/"]}


def mount(name: str, *, source: str = "/dev/null", root: str = ROOT) -> dict[str, Any]:
    return {"source": source, "destination": f"{root}/{name}"}


def asked(*env: str, mounts: "list[dict[str, Any]] | None" = None, annotations: "dict[str, Any] | None" = None, **changes: Any) -> Request | None:  # fmt: skip
    tree = {"process": {"env": list(env)}, "mounts": mounts or [], "annotations": annotations or {}}
    return requested(tree, settings(**changes))


def devices(request: Request | None) -> tuple[str, tuple[str, ...]]:
    assert request is not None
    return request.kind, request.devices


# ---- which source counts ----


def test_annotations_win_over_mounts_and_these_over_the_environment() -> None:
    env = "NVIDIA_VISIBLE_DEVICES=0"
    by_mount, by_annotation = [mount("1")], {"cdi.k8s.io/plugin_x": "nvidia.com/gpu=2"}

    both = asked(env, mounts=by_mount, annotations=by_annotation, **MOUNTS, **ANNOTATIONS)

    assert devices(both) == ("devices-annotation", ("2",))
    assert devices(asked(env, mounts=by_mount, **MOUNTS, **ANNOTATIONS)) == ("devices-mount", ("1",))
    assert devices(asked(env, **MOUNTS, **ANNOTATIONS)) == ("devices-env", ("0",))


def test_sources_are_switched_off_until_the_administrator_lists_them() -> None:
    tree: dict[str, Any] = {"mounts": [mount("1")], "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=2"}}

    assert devices(asked("NVIDIA_VISIBLE_DEVICES=0", **tree)) == ("devices-env", ("0",))
    assert asked(**tree) is None


def test_a_lower_source_is_not_even_parsed() -> None:
    """Device plugins set the variable to the directory of the mounts."""
    request = asked(f"NVIDIA_VISIBLE_DEVICES={ROOT}", mounts=[mount("0")], **MOUNTS)

    assert devices(request) == ("devices-mount", ("0",))


def test_void_vetoes_every_source() -> None:
    tree: dict[str, Any] = {"mounts": [mount("1")], "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=2"}}

    assert asked("NVIDIA_VISIBLE_DEVICES=void", **tree, **MOUNTS, **ANNOTATIONS) is None
    assert asked(mounts=[mount("void")], **MOUNTS) is None


def test_feature_variables_count_whatever_the_source() -> None:
    request = asked("NVIDIA_MIG_MONITOR_DEVICES=all", mounts=[mount("none")], **MOUNTS)

    assert request is not None
    assert (request.devices, list(request.extras)) == ((), ["mig-monitor"])


# ---- mounts ----


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        pytest.param([mount("0"), mount("1")], ("0", "1"), id="two"),
        pytest.param([mount("0"), mount("0")], ("0",), id="twice"),
        pytest.param([mount("all"), mount("0")], ("all",), id="all"),
        pytest.param([mount("0,1")], ("0,1",), id="no-list"),
        pytest.param([mount("0", source="//dev/./null")], ("0",), id="source-in-another-spelling"),
        pytest.param([mount("cdi/nvidia.com/gpu/0")], ("0",), id="cdi"),
        pytest.param([mount("cdi/nvidia.com/gpu=0")], ("0",), id="cdi-with-equals"),
        pytest.param([mount("cdi/runtime.nvidia.com/gpu/all")], ("all",), id="cdi-all"),
    ],
)
def test_mounts(mounts: list[dict[str, Any]], expected: tuple[str, ...]) -> None:
    assert devices(asked(mounts=mounts, **MOUNTS)) == ("devices-mount", expected)


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param([mount("0", source="/dev/zero")], id="another-source"),
        pytest.param([mount("3", root=ROOT + "-evil")], id="a-directory-with-ours-as-its-start"),
        pytest.param([{"source": "/dev/null", "destination": ROOT}], id="the-directory-itself"),
        pytest.param([{"source": "/dev/null"}], id="no-destination"),
        pytest.param([mount("imex/0")], id="a-channel-is-no-device"),
    ],
)
def test_mounts_that_are_none(mounts: list[dict[str, Any]]) -> None:
    assert asked(mounts=mounts, **MOUNTS) is None


# ---- annotations ----


def test_annotations_in_the_order_of_their_keys() -> None:
    annotations = {"cdi.k8s.io/b": "nvidia.com/gpu=1, nvidia.com/gpu=0", "cdi.k8s.io/a": "nvidia.com/gpu=2", "other": "9", "cdi.k8s.io/c": 7}  # fmt: skip

    assert devices(asked(annotations=annotations, **ANNOTATIONS)) == ("devices-annotation", ("2", "1", "0"))


def test_annotations_of_podman_do_not_count_unless_a_setting_says_so() -> None:
    annotations = {"io.container.manager": "libpod", "cdi.k8s.io/x": "nvidia.com/gpu=0"}

    assert asked(annotations=annotations, **ANNOTATIONS) is None
    more: dict[str, Any] = {"gpushim__annotations_under_podman": True}
    assert devices(asked(annotations=annotations, **ANNOTATIONS, **more)) == ("devices-annotation", ("0",))


# ---- CDI names ----


def test_names_of_our_kinds_need_no_file() -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,runtime.nvidia.com/gpu=GPU-x,1,"
        "nvidia.com/mig-config=all,nvidia.com/mig-monitor=all,nvidia.com/imex-channel=3,management.nvidia.com/gpu=all"
    )

    assert request is not None
    assert request.devices == ("0", "GPU-x", "1")
    assert sorted(request.extras) == ["imex", "management", "mig-config", "mig-monitor"]
    assert (request.management, request.imex) == (("all",), ("3",))


def test_a_capability_by_name_brings_no_gpu() -> None:
    request = asked("NVIDIA_VISIBLE_DEVICES=nvidia.com/mig-monitor=all")

    assert request is not None
    assert request.devices == ()
    assert request.kinds() == [
        ("devices-env", "NVIDIA_VISIBLE_DEVICES"),
        ("mig-monitor", "NVIDIA_VISIBLE_DEVICES: nvidia.com/mig-monitor=all"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("vendor.com/device=0", "GS0302: NVIDIA_VISIBLE_DEVICES: 'vendor.com/device=0': an environment may not name devices of vendor 'vendor.com'", id="another-vendor"),
        pytest.param("nvidia.com/nic=0", "GS0210: NVIDIA_VISIBLE_DEVICES: nvidia.com/nic=0: unknown kind 'nvidia.com/nic'", id="another-kind"),
        pytest.param("nvidia.com/mig-config=0", "GS0209: NVIDIA_VISIBLE_DEVICES: nvidia.com/mig-config=0: unknown device\nhint: the one device is nvidia.com/mig-config=all", id="one-of-mig-config"),
        pytest.param("nvidia.com/gpu=", "GS0208: NVIDIA_VISIBLE_DEVICES: 'nvidia.com/gpu=' is no CDI name", id="no-device"),
        pytest.param("=0", "GS0208: NVIDIA_VISIBLE_DEVICES: '=0' is no CDI name", id="no-kind"),
        pytest.param("gpu=0", "GS0208: NVIDIA_VISIBLE_DEVICES: 'gpu=0' is no CDI name", id="no-vendor"),
        pytest.param("nvidia.com/imex-channel=x", "GS0207: NVIDIA_VISIBLE_DEVICES: nvidia.com/imex-channel=x: unknown IMEX channel 'x'", id="no-channel"),
    ],
)  # fmt: skip
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(ShimError) as raised:
        asked(f"NVIDIA_VISIBLE_DEVICES={name}")

    assert str(raised.value).startswith(message)


def test_an_engines_user_may_name_any_vendor_which_is_an_error_until_files_are_read() -> None:
    with pytest.raises(ShimError) as raised:
        asked(annotations={"cdi.k8s.io/x": "vendor.com/device=0"}, **ANNOTATIONS)

    assert raised.value.id == "GS0210"


# ---- IMEX channels ----


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", ("0",)),
        ("channel1,2", ("1", "2")),
        ("", ()),
        ("none", ()),
        ("void", ()),
        ("all", ()),
        ("0,all", ()),
    ],
)
def test_channels_by_environment(value: str, expected: tuple[str, ...]) -> None:
    request = asked("NVIDIA_VISIBLE_DEVICES=none", f"NVIDIA_IMEX_CHANNELS={value}")

    assert request is not None
    assert request.imex == expected
    assert ("imex" in request.extras) == bool(expected)


def test_channels_by_mount_may_be_all() -> None:
    request = asked("NVIDIA_VISIBLE_DEVICES=0", mounts=[mount("imex/all"), mount("imex/2")], **MOUNTS)

    assert request is not None
    assert (request.devices, request.imex) == (("0",), ("all",))


def test_a_node_may_ignore_channels() -> None:
    request = asked(
        "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=x", features__ignore_imex_channel_requests=True
    )

    assert request is not None
    assert (request.imex, request.extras) == ((), {})


@pytest.mark.parametrize("value", ["x", "-1", "channel", "1048576", "\u0661"])
def test_channels_that_are_none(value: str) -> None:
    with pytest.raises(ShimError) as raised:
        asked("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={value}")

    assert raised.value.id == "GS0207"


# ---- on a node ----


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, "seed")


def given(host: Host, *env: str, admin: bool = True) -> list[str]:
    capabilities = {"bounding": ["CAP_SYS_ADMIN"] if admin else []}
    tree = {"process": {"env": list(env), "capabilities": capabilities}}
    selection = resolve(tree, host.settings, "runc", str(host.directory / "state")).selection
    assert selection is not None
    return [device.path.removeprefix("/dev/") for device in selection.devices]


def test_management_is_all_there_is_each_once(host: Host) -> None:
    found = given(
        host, "NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all,0", "NVIDIA_DRIVER_CAPABILITIES=utility"
    )

    assert found[:5] == ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0"]
    assert found[-2:] == ["nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap1"]
    assert len(found) == len(set(found)) == 5 + 14 + 2


def test_management_by_an_image_is_not_free(host: Host) -> None:
    with pytest.raises(ShimError) as raised:
        given(host, "NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all", admin=False)

    assert str(raised.value).startswith(
        "GS0301: NVIDIA_VISIBLE_DEVICES: management.nvidia.com/gpu=all: refused: needs CAP_SYS_ADMIN"
    )


def test_a_channel_must_be_there(host: Host) -> None:
    directory = host.directory / "dev/nvidia-caps-imex-channels"
    directory.mkdir()
    (directory / "nonsense").touch()
    (directory / "channel7").touch()

    with pytest.raises(ShimError) as raised:
        given(host, "NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_IMEX_CHANNELS=3")

    assert str(raised.value) == (
        "GS0413: NVIDIA_IMEX_CHANNELS: /dev/nvidia-caps-imex-channels/channel3 is not on this host\n"
        "hint: the administrator makes it: mknod(1)"
    )
