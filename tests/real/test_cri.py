"""The reporter's pod as Kubernetes starts it: through containerd's CRI, gpushim as the runtime handler."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests import fakenode
from tests.real.bed import BIN
from tests.real.conftest import SeedNode, recorder
from tests.real.cri import Containerd, containerd

ENV = (
    "MPS_ROOT=/run/nvidia/mps",
    "MIG_STRATEGY=mixed",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_MIG_MONITOR_DEVICES=all",
)


@pytest.fixture(scope="module")
def engine(root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Containerd, SeedNode]]:
    directory = Path(tmp_path_factory.mktemp("cri"))
    runc = recorder(directory / "record-runc" / "runc", "runc")
    seed = SeedNode(directory / "node", f'[nvidia-container-runtime]\nruntimes = ["{runc}"]')
    with containerd(directory, root, {"gpushim": seed.shim(directory / "gpushim")}) as running:
        yield running, seed


def asked(seed: SeedNode, *minors: int) -> list[str]:
    return [f"c:{seed.node.caps_major}:{minor}:r" for minor in minors]


def test_the_reporters_pod(engine: tuple[Containerd, SeedNode]) -> None:
    running, seed = engine
    items = [
        "/dev/nvidia-caps/nvidia-cap2:r",
        "/dev/nvidia0:rw",
        "/dev/nvidia-caps/nvidia-cap1:r",
        *asked(seed, 1, 66, 500),
    ]

    with running.pod("gpushim") as pod:
        container = pod.start(ENV, capabilities=("SYS_ADMIN",))
        out = pod.execute(container, "/opens", *items)

    assert [line.rsplit(" ", 1)[1] for line in out.splitlines()] == ["ENXIO", "ENXIO", "ENOENT", "EPERM", "ENXIO", "EPERM"]  # fmt: skip


def test_devices_knows_containerds_ids(engine: tuple[Containerd, SeedNode]) -> None:
    running, seed = engine

    with running.pod("gpushim") as pod:
        container = pod.start(ENV, capabilities=("SYS_ADMIN",))
        done = running.run_here(str(BIN / "gpushim"), "devices", "--json", container[:13], env=seed.env)

    report = json.loads(done.stdout)
    assert (done.returncode, report["container"]["id"]) == (0, container)
    assert {row["opens"] for row in report["devices"] if row["asked"]} == {True}


def test_the_same_privileged(engine: tuple[Containerd, SeedNode]) -> None:
    running, seed = engine

    with running.pod("gpushim", privileged=True) as pod:
        container = pod.start(ENV, privileged=True)
        out = pod.execute(container, "/opens", "/dev/nvidia-caps/nvidia-cap2:r", *asked(seed, 1))

    assert [line.rsplit(" ", 1)[1] for line in out.splitlines()] == ["ENXIO", "ENXIO"]


def test_a_refused_pod_shows_our_words_where_kubernetes_looks(engine: tuple[Containerd, SeedNode]) -> None:
    running, _ = engine

    with running.pod("gpushim") as pod, pytest.raises(grpc.RpcError) as raised:
        pod.start(ENV)

    details = raised.value.details()
    for words in ("GS0301", "NVIDIA_MIG_MONITOR_DEVICES", "CAP_SYS_ADMIN", "gpushim.policy.mig-monitor"):
        assert words in details


KEY = "io.kubernetes.cri.sandbox-namespace"
RULE = """
[gpushim]
engine = "containerd"
[[gpushim.policy.rules]]
annotation."{key}" = "{namespace}"
mig-monitor = "allow"
"""


def test_a_rule_on_the_namespace_holds_against_a_pod_that_lies(root: str, tmp_path_factory: pytest.TempPathFactory) -> None:  # fmt: skip
    directory = Path(tmp_path_factory.mktemp("rule"))
    mine = SeedNode(directory / "mine", RULE.format(key=KEY, namespace="gpu-monitoring"))
    other = SeedNode(directory / "other", RULE.format(key=KEY, namespace="kube-system"))
    handlers = {"mine": mine.shim(directory / "shim-mine"), "other": other.shim(directory / "shim-other")}

    with containerd(directory, root, handlers) as engine:
        with engine.pod("mine") as pod:
            container = pod.start(ENV, annotations={KEY: "default"})
            assert "ENXIO" in pod.execute(container, "/opens", "/dev/nvidia-caps/nvidia-cap2:r")
        with engine.pod("other") as pod, pytest.raises(grpc.RpcError) as raised:
            pod.start(ENV, annotations={KEY: "kube-system"})

    assert "GS0301" in raised.value.details()


def test_an_unknown_device_lists_the_known(engine: tuple[Containerd, SeedNode]) -> None:
    running, _ = engine

    with running.pod("gpushim") as pod, pytest.raises(grpc.RpcError) as raised:
        pod.start(("NVIDIA_VISIBLE_DEVICES=7",))

    assert "unknown device '7'" in raised.value.details()
    assert "this node has 0 (GPU-" in raised.value.details()


def test_a_mig_device_by_uuid(engine: tuple[Containerd, SeedNode]) -> None:
    running, seed = engine
    uuid = fakenode.mig_uuid(seed.node.gpus[0], 8, 0)

    with running.pod("gpushim") as pod:
        container = pod.start((f"NVIDIA_VISIBLE_DEVICES={uuid}",))
        out = pod.execute(
            container, "/opens", "/dev/nvidia-caps/nvidia-cap75:r", "/dev/nvidia0:rw", *asked(seed, 76, 66)
        )

    assert [line.rsplit(" ", 1)[1] for line in out.splitlines()] == ["ENXIO", "ENXIO", "ENXIO", "EPERM"]


def test_a_plain_pod_is_untouched(engine: tuple[Containerd, SeedNode]) -> None:
    running, seed = engine

    with running.pod("gpushim") as pod:
        container = pod.start(())
        out = pod.execute(container, "/opens", "/dev/nvidia0:rw", *asked(seed, 2))

    assert [line.rsplit(" ", 1)[1] for line in out.splitlines()] == ["ENOENT", "EPERM"]
    before = (running.directory / "gpushim.before.json").read_bytes()
    assert (running.directory / "record-runc/runc.json").read_bytes() == before
