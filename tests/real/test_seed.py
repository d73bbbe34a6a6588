"""The report this product starts from, under real runtimes: who can open what.

Rows are those of the report's table: 1 the reporter's pod, 2 the same privileged, 3 MIG strategy `none` (no monitor
variable), 5 what toolkit 1.17 gave. Row 4, the hook, is not this outlet's.
"""

from pathlib import Path
from typing import Any

import pytest

from tests import fakenode
from tests.fakenode import Node
from tests.real.bed import ADMIN, BIN, Bed, Ran

SHIM = str(BIN / "gpushim-runtime")
DEVICES = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
MONITOR = ("NVIDIA_MIG_MONITOR_DEVICES=all",)
CONFIG = ("NVIDIA_MIG_CONFIG_DEVICES=all",)
REPORTER = ("MPS_ROOT=/run/nvidia/mps", "MIG_STRATEGY=mixed", *DEVICES, *MONITOR)

CAP1, CAP2, GI, CI, LATER = 1, 2, 66, 67, 500


class Seed:
    """The seed's node in one bed, and containers on it."""

    def __init__(self, bed: Bed, directory: Path, *settings: str) -> None:
        self.bed = bed
        self.node: Node = fakenode.build(directory, "seed", avoid=fakenode.real_majors())
        lines = ["[nvidia-container-runtime]", f'runtimes = ["{bed.runtime}"]', *settings]
        self.settings = directory / "config.toml"
        with self.settings.open("a") as file:
            file.write("\n".join(lines) + "\n")
        self.env = {
            "GPUSHIM_CONFIG": str(self.settings),
            "GPUSHIM_STATE": str(directory / "state"),
        }

    def bundle(self, *env: str, admin: bool = False, **more: Any) -> Path:
        caps = self.node.caps_major
        items = [
            f"/dev/nvidia-caps/nvidia-cap{n}:{mode}" for n in (CAP1, CAP2, GI, CI) for mode in ("r", "w")
        ]
        items += [f"c:{caps}:{n}:r" for n in (CAP1, CAP2, GI, LATER)]
        items += ["/dev/nvidiactl:rw", "/dev/nvidia0:rw", "/dev/nvidia-uvm:rw", "c:195:7:r"]
        return self.bed.bundle(items, env, capabilities=ADMIN if admin else (), **more)

    def run(self, bundle: Path) -> Ran:
        return self.bed.run(bundle, SHIM, env=self.env)

    def opens(self, *env: str, **more: Any) -> dict[str, str]:
        ran = self.run(self.bundle(*env, **more))
        assert ran.err == ""
        assert ran.code == 0
        return self.named(ran)

    def named(self, ran: Ran) -> dict[str, str]:
        """The answers, by short names in which no major stands."""
        caps = f"c:{self.node.caps_major}:"
        return {
            item.replace("/dev/", "").replace("nvidia-caps/nvidia-", "").replace(caps, "caps:"): answer
            for item, answer in ran.opens.items()
        }


@pytest.fixture
def seed(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Seed:
    directory = bed.directory / f"seed{len(list(bed.directory.iterdir()))}"
    return Seed(bed, directory)


GPU = {"nvidiactl:rw": "ENXIO", "nvidia0:rw": "ENXIO", "nvidia-uvm:rw": "ENXIO", "c:195:7:r": "EPERM"}
INSTANCES = {
    "cap66:r": "ENXIO",
    "cap66:w": "EPERM",
    "cap67:r": "ENXIO",
    "cap67:w": "EPERM",
    "caps:66:r": "ENXIO",
}
MONITORED = {"cap2:r": "ENXIO", "cap2:w": "EPERM", "caps:2:r": "ENXIO"}
NOT_MONITORED = {"cap2:r": "ENOENT", "cap2:w": "ENOENT", "caps:2:r": "EPERM"}
CONFIGURED = {"cap1:r": "ENXIO", "cap1:w": "EPERM", "caps:1:r": "ENXIO", "caps:500:r": "ENXIO"}
NOT_CONFIGURED = {"cap1:r": "ENOENT", "cap1:w": "ENOENT", "caps:1:r": "EPERM", "caps:500:r": "EPERM"}


def test_row_1_and_5_the_reporters_pod_can_open_what_it_needs(seed: Seed) -> None:
    opens = seed.opens(*REPORTER, admin=True)

    assert opens == GPU | INSTANCES | MONITORED | NOT_CONFIGURED


def test_row_1_in_the_steps_that_engines_take(seed: Seed) -> None:
    bundle = seed.bundle(*REPORTER, admin=True)

    ran = seed.bed.create_and_start(bundle, SHIM, env=seed.env)

    assert (ran.code, ran.err) == (0, "")
    assert seed.named(ran) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED


def test_row_2_the_same_privileged(seed: Seed) -> None:
    opens = seed.opens(*REPORTER, privileged=True)

    nodes = dict.fromkeys(GPU | INSTANCES | MONITORED, "ENXIO")
    absent = {"cap1:r": "ENOENT", "cap1:w": "ENOENT"}
    assert opens == nodes | absent | {"caps:1:r": "ENXIO", "caps:500:r": "ENXIO"}


def test_row_3_without_the_monitor_variable(seed: Seed) -> None:
    assert seed.opens("MIG_STRATEGY=none", *DEVICES) == GPU | INSTANCES | NOT_MONITORED | NOT_CONFIGURED


def test_both_capabilities(seed: Seed) -> None:
    assert seed.opens(*DEVICES, *MONITOR, *CONFIG, admin=True) == GPU | INSTANCES | MONITORED | CONFIGURED


def test_a_pod_that_asks_for_none_and_monitors(seed: Seed) -> None:
    opens = seed.opens("NVIDIA_VISIBLE_DEVICES=none", *MONITOR, admin=True)

    none = {"nvidia0:rw": "ENOENT"}
    instances = {key: "ENOENT" if key.startswith("cap6") else "EPERM" for key in INSTANCES}
    assert opens == GPU | none | instances | MONITORED | NOT_CONFIGURED


def test_one_mig_device_by_uuid(seed: Seed) -> None:
    gpu = seed.node.gpus[0]

    opens = seed.opens(f"NVIDIA_VISIBLE_DEVICES={fakenode.mig_uuid(gpu, 7, 0)}", DEVICES[1])

    assert opens == GPU | INSTANCES | NOT_MONITORED | NOT_CONFIGURED
    other = seed.opens(f"NVIDIA_VISIBLE_DEVICES={fakenode.mig_uuid(gpu, 8, 0)}", DEVICES[1])
    assert (other["cap66:r"], other["caps:66:r"], other["nvidia0:rw"]) == ("ENOENT", "EPERM", "ENXIO")


def test_a_plain_container_is_byte_identical(seed: Seed) -> None:
    for env in ((), ("NVIDIA_VISIBLE_DEVICES=void", *MONITOR)):
        bundle = seed.bundle(*env)
        before = (bundle / "config.json").read_bytes()

        ran = seed.run(bundle)

        assert ran.err == ""
        assert ran.code == 0
        assert (bundle / "config.json").read_bytes() == before
        assert set(ran.opens.values()) == {"ENOENT", "EPERM"}


def test_without_sys_admin_it_is_refused_before_the_runtime(seed: Seed) -> None:
    bundle = seed.bundle(*REPORTER)
    before = (bundle / "config.json").read_bytes()

    ran = seed.run(bundle)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("gpushim: GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused: needs CAP_SYS_ADMIN")
    assert "gpushim.policy.mig-monitor" in ran.err
    assert (bundle / "config.json").read_bytes() == before


def test_an_administrator_may_allow_monitoring_alone(bed: Bed) -> None:
    directory = bed.directory / f"seed{len(list(bed.directory.iterdir()))}"
    seed = Seed(bed, directory, "[gpushim.policy]", 'mig-monitor = "allow"')

    assert seed.opens(*REPORTER) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED
    assert seed.run(seed.bundle(*DEVICES, *CONFIG)).code == 1
