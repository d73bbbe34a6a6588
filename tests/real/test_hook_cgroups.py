"""The hook where the cgroups are not as they should be: shared, nested, of another namespace."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushim_hooks import cgroup
from tests.real.bed import Bed, Cell, lacking
from tests.real.test_hook import Hooked
from tests.real.test_seed import GPU, INSTANCES, MONITORED, NOT_CONFIGURED, REPORTER

V1 = Path("/sys/fs/cgroup/devices")
PREPARED = f"gpushim-test-{os.getpid()}"


@pytest.fixture
def hooked(tmp_path: Path) -> Hooked:
    """On cgroup v1, by runc."""
    cell = Cell("host", "runc", "v1")
    if reason := lacking(cell):
        pytest.skip(reason)
    bed = Bed(cell, tmp_path / "bed")
    return Hooked(bed, tmp_path / "bed/node", "[gpushim.policy]", 'mig-monitor = "allow"')


@pytest.fixture
def group() -> Iterator[Path]:
    """A v1 devices cgroup that allows by list."""
    path = V1 / PREPARED
    path.mkdir()
    (path / "devices.deny").write_text("a")
    yield path
    for directory in [*path.glob("*/"), path]:
        directory.rmdir()


def at(path: str) -> Any:
    def change(config: dict[str, Any]) -> None:
        config["linux"]["cgroupsPath"] = path

    return change


def test_an_engine_whose_own_cgroup_lacks_the_device_is_told_so(hooked: Hooked, group: Path) -> None:
    """As in a container that runs an engine: what the cgroup above denies, the kernel allows nobody below."""
    for rule in ("c *:* m", "b *:* m", *[f"c {numbers} rwm" for numbers in ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "10:200", "136:*")]):  # fmt: skip
        (group / "devices.allow").write_text(rule)

    ran = hooked.run(hooked.bundle(*REPORTER, change=at(f"/{PREPARED}/inner")))

    assert ran.code == 1
    rule = "c 195:255 rw"
    assert f"GS0764: {group}/inner/devices.allow: {rule}: the kernel refuses it" in hooked.log


def test_nothing_is_written_into_a_cgroup_with_other_processes(hooked: Hooked, group: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    (group / "cgroup.procs").write_text(str(stranger.pid))
    try:
        ran = hooked.run(hooked.bundle(*REPORTER, change=at(f"/{PREPARED}")))
        listed = (group / "devices.list").read_text()
    finally:
        stranger.kill()
        stranger.wait()

    assert ran.code == 1
    assert (
        f"GS0766: {group}: other processes than the container's are in it: no rule is written there"
        in hooked.log
    )
    assert "195:" not in listed and f"{hooked.node.caps_major}:" not in listed


def test_a_directory_that_opens_no_devices_is_no_obstacle(hooked: Hooked) -> None:
    """What the hook gives is a mount of its own, whatever the one below it says."""

    def nodev(config: dict[str, Any]) -> None:
        volume = {"destination": "/dev/nvidia-caps", "type": "tmpfs", "source": "t", "options": ["nodev"]}
        config["mounts"].append(volume)

    assert hooked.opens(*REPORTER, change=nodev) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED


def test_a_cgroup_of_another_namespace_is_left_alone(group: Path) -> None:
    """`/..` in /proc/PID/cgroup: a process outside of the cgroup namespace that this one lives in."""
    program = (
        "import sys; from gpushim_hooks import cgroup\n"
        "try: cgroup.find(int(sys.argv[1]))\n"
        "except Exception as problem: print(problem)"
    )
    script = 'echo 0 > "$0/cgroup.procs" && exec unshare --cgroup "$@"'
    argv = ["sh", "-c", script, str(group), sys.executable, "-c", program, str(os.getpid())]

    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("GS0763: cgroup /..")
    assert "lies outside of what is mounted here" in done.stdout


def test_whose_cgroup_it_is(group: Path) -> None:
    own = subprocess.Popen(["unshare", "-m", "sleep", "60"])
    other = subprocess.Popen(["sleep", "60"])
    try:
        while os.stat(f"/proc/{own.pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            pass
        (group / "cgroup.procs").write_text(str(own.pid))
        assert cgroup.is_its_own(str(group), str(V1), own.pid)
        (group / "below").mkdir()
        (group / "below/cgroup.procs").write_text(str(other.pid))
        assert not cgroup.is_its_own(str(group), str(V1), own.pid)
        (group / "cgroup.procs").write_text(str(other.pid))
        assert not cgroup.is_its_own(str(group), str(V1), own.pid)
        assert not cgroup.is_its_own(str(V1), str(V1), own.pid)
        assert not cgroup.is_its_own(f"{V1}/system.slice", str(V1), own.pid)
    finally:
        for process in (own, other):
            process.kill()
            process.wait()
