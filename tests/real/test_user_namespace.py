"""Containers in a user namespace, whose root is nobody on the host: the host's nodes are bound, and no rank counts."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.bed import ADMIN, CELLS, Bed, Cell, lacking
from tests.real.conftest import SeedNode
from tests.real.test_seed import CONFIG, DEVICES, MONITOR, SHIM

ITEMS = [
    "/dev/nvidiactl:rw",
    "/dev/nvidia0:rw",
    "/dev/nvidia-uvm:rw",
    "/dev/nvidia-caps/nvidia-cap66:r",
    "/dev/nvidia-caps/nvidia-cap67:r",
    "/dev/nvidia-caps/nvidia-cap2:r",
    "/dev/nvidia-caps/nvidia-cap1:r",
]


class UserBed:
    """The seed's node in one cell, and containers in a user namespace on it."""

    def __init__(self, cell: Cell, directory: Path) -> None:
        self.bed = Bed(cell, directory)
        runtime = f'runtimes = ["{self.bed.runtime}"]'
        self.node = SeedNode(directory / "node", "[nvidia-container-runtime]", runtime)

    def allow(self, *kinds: str) -> None:
        with self.node.settings.open("a") as file:
            file.write("[gpushim.policy]\n" + "".join(f'{kind} = "allow"\n' for kind in kinds))

    def bundle(self, *env: str) -> Path:
        return self.bed.bundle(ITEMS, env, capabilities=ADMIN, user_namespace=True)


@pytest.fixture(params=CELLS, ids=str)
def user(request: pytest.FixtureRequest) -> Iterator[UserBed]:
    cell: Cell = request.param
    if reason := lacking(cell):
        pytest.skip(f"{cell}: {reason}")
    # Not below pytest's own directory, which the container's root may not pass.
    directory = Path(tempfile.mkdtemp(prefix="gpushim-test-"))
    directory.chmod(0o755)
    try:
        yield UserBed(cell, directory)
    finally:
        shutil.rmtree(directory)


def answers(user: UserBed, *env: str) -> list[str]:
    ran = user.bed.run(user.bundle(*env), SHIM, env=user.node.env)
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.opens) == ITEMS
    return list(ran.opens.values())


def test_gpus_and_instances(user: UserBed) -> None:
    assert answers(user, *DEVICES) == ["ENXIO"] * 5 + ["ENOENT"] * 2


def test_monitoring_once_it_is_allowed(user: UserBed) -> None:
    user.allow("mig-monitor", "mig-config")

    assert answers(user, *DEVICES, *MONITOR) == ["ENXIO"] * 6 + ["ENOENT"]
    # nvidia-cap1 belongs to the host's root alone, and no capability counts over it here.
    assert answers(user, *DEVICES, *CONFIG) == ["ENXIO"] * 5 + ["ENOENT", "EACCES"]


def test_sys_admin_in_a_user_namespace_is_none(user: UserBed) -> None:
    bundle = user.bundle(*DEVICES, *MONITOR)
    before = (bundle / "config.json").read_bytes()

    ran = user.bed.run(bundle, SHIM, env=user.node.env)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("gpushim: GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused: ")
    assert "user namespace" in ran.err
    assert (bundle / "config.json").read_bytes() == before
