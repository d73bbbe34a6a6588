"""GPUDirect Storage, RDMA, GDRCopy and NVSwitch: asked for by `enabled` or by a CDI name, given as the host has them."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpushim.edits import AddMount, AllowDevice
from gpushim.errors import Refused
from gpushim.resolution import Resolution, resolve
from tests.conftest import Shim

NODES = {
    "/dev/nvidia-fs0": (501, 0),
    "/dev/nvidia-fs1": (501, 1),
    "/dev/infiniband/uverbs0": (231, 192),
    "/dev/infiniband/rdma_cm": (10, 58),
    "/dev/infiniband/issm0": (231, 64),
    "/dev/gdrdrv": (502, 0),
    "/dev/nvidia-nvswitchctl": (503, 255),
    "/dev/nvidia-nvswitch0": (503, 0),
}
GDS = ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]
MOFED = ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
SWITCH = ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"]


@pytest.fixture
def host(shim: Shim) -> Shim:
    """The simulated node with those of other drivers."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes device nodes")
    for name, numbers in NODES.items():
        path = Path(f"{shim.root}{name}")
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*numbers))
    (shim.root / "dev/nvidia-fs-notes").write_text("no device")
    for name in ("etc/cufile.json", "run/udev/data"):
        path = shim.root / "driver" / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    return shim


def given(host: Shim, *env: str, admin: bool = False, **settings: Any) -> Resolution:
    config: dict[str, Any] = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", *env]}}
    if admin:
        config["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    return resolve(config, host.settings | settings, "runc", str(host.state))


def nodes(found: Resolution) -> dict[str, tuple[int, int]]:
    assert found.selection is not None
    return {one.path: (one.major, one.minor) for one in found.selection.devices if one.path in NODES}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param(("NVIDIA_GDS=enabled",), GDS, id="gds"),
        pytest.param(("NVIDIA_MOFED=enabled",), MOFED, id="mofed"),
        pytest.param(("NVIDIA_GDRCOPY=enabled",), ["/dev/gdrdrv"], id="gdrcopy"),
        pytest.param(("NVIDIA_NVSWITCH=enabled",), SWITCH, id="nvswitch"),
        pytest.param(("NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled"), [*GDS, "/dev/gdrdrv"], id="two"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_GDS=enabled"), GDS, id="without-a-gpu"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=nvidia.com/gds=all",), GDS, id="by-cdi-name"),
        pytest.param(("NVIDIA_GDS=disabled",), [], id="another-word"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_GDS=enabled"), None, id="void"),
    ],
)
def test_a_feature_gives_the_hosts_nodes(
    host: Shim, env: tuple[str, ...], expected: list[str] | None
) -> None:
    found = given(host, *env, admin=True)

    if expected is None:
        assert found.selection is None
    else:
        assert nodes(found) == {name: NODES[name] for name in expected}
        rules = {(e.major, e.minor): e.access for e in found.edits if isinstance(e, AllowDevice)}
        assert {rules[NODES[name]] for name in expected} <= {"rw"}


def test_gds_brings_its_files(host: Shim) -> None:
    mounts = {
        e.destination: e.source for e in given(host, "NVIDIA_GDS=enabled").edits if isinstance(e, AddMount)
    }

    assert mounts == {
        "/etc/cufile.json": f"{host.root}/driver/etc/cufile.json",
        "/run/udev": f"{host.root}/driver/run/udev",
    }


def test_nvswitch_needs_an_administrators_word(host: Shim) -> None:
    with pytest.raises(Refused, match=r"GS0301: NVIDIA_NVSWITCH: refused: needs CAP_SYS_ADMIN"):
        given(host, "NVIDIA_NVSWITCH=enabled")


def test_features_are_denied_as_one_kind_and_nvswitch_as_another(host: Shim) -> None:
    denied = {"gpushim.policy.features": "deny", "gpushim.policy.on-refusal.features": "ignore"}

    found = given(host, "NVIDIA_GDS=enabled", "NVIDIA_NVSWITCH=enabled", admin=True, **denied)

    assert nodes(found) == {name: NODES[name] for name in SWITCH}
    assert found.warnings == [
        'NVIDIA_GDS: refused: the policy of this node denies it (gpushim.policy.features = "deny")'
    ]


def test_a_feature_that_this_host_lacks_is_a_warning(shim: Shim) -> None:
    found = given(shim, "NVIDIA_GDS=enabled")

    assert found.warnings == ["NVIDIA_GDS: this host has no node of it: nothing is given"]


def test_the_launcher_has_nothing_to_do_with_it_alone(shim: Shim) -> None:
    """A feature without a GPU request asks for nothing, as in the toolkit."""
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_GDS=enabled"]}}))
    before = shim.config.read_bytes()

    assert shim.create().returncode == 0
    assert shim.config.read_bytes() == before
