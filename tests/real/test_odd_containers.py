"""Containers that are set up in other ways: user namespaces, no rules, the host's /dev, both cgroup versions at once."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.bed import ADMIN, Bed, Cell, Ran, lacking
from tests.real.test_seed import DEVICES, MONITOR, SHIM, Seed

ASKED = [
    "/dev/nvidia0:rw",
    "/dev/nvidiactl:rw",
    "/dev/nvidia-caps/nvidia-cap2:r",
    "/dev/nvidia-caps/nvidia-cap66:r",
]


@pytest.fixture
def seed(bed: Bed) -> Seed:
    # In a user namespace root is another user to the host: it must reach the nodes it is given.
    for parent in (bed.directory, *bed.directory.parents):
        if os.stat(parent).st_mode & 0o055 != 0o055:
            os.chmod(parent, 0o755)
    settings = ["[gpushim.policy]", 'mig-monitor = "allow"']
    return Seed(bed, bed.directory / f"odd{len(list(bed.directory.iterdir()))}", *settings)


def in_user_namespace(config: dict[str, Any]) -> None:
    mapping = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    config["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
    config["linux"]["namespaces"].append({"type": "user"})


def test_in_a_user_namespace_the_hosts_nodes_are_bound(seed: Seed) -> None:
    bundle = seed.bed.bundle(ASKED, (*DEVICES, *MONITOR), change=in_user_namespace)

    ran = seed.run(bundle)

    assert (ran.code, ran.err) == (0, "")
    assert set(ran.opens.values()) == {"ENXIO"}
    config = json.loads((bundle / "config.json").read_text())
    assert "devices" not in config["linux"]


def test_in_a_user_namespace_a_node_that_is_missing_is_an_error(seed: Seed) -> None:
    bundle = seed.bed.bundle(ASKED, DEVICES, change=in_user_namespace)
    before = (bundle / "config.json").read_bytes()
    dev = Path(seed.env["GPUSHIM_CONFIG"]).parent / "dev"
    (dev / "nvidia-caps/nvidia-cap66").unlink()

    ran = seed.run(bundle)

    assert ran.code == 1
    assert ran.err.startswith("gpushim: GS0406: /dev/nvidia-caps/nvidia-cap66: is not on this host")
    assert "gpushim node prepare" in ran.err
    assert (bundle / "config.json").read_bytes() == before


def test_sys_admin_of_a_user_namespace_is_refused(seed: Seed) -> None:
    bundle = seed.bed.bundle(ASKED, (*DEVICES, "NVIDIA_MIG_CONFIG_DEVICES=all"), capabilities=ADMIN, change=in_user_namespace)  # fmt: skip

    ran = seed.run(bundle)

    assert ran.code == 1
    assert "needs CAP_SYS_ADMIN outside of a user namespace" in ran.err


def test_in_a_user_namespace_nvidia_cap1_stays_the_hosts_roots(bed: Bed, seed: Seed) -> None:
    """It is bound and the cgroup lets it through, but its mode is 0400 and no capability counts over that here."""
    settings = ["[gpushim.policy]", 'mig-config = "allow"']
    allowing = Seed(bed, bed.directory / f"odd{len(list(bed.directory.iterdir()))}", *settings)
    item = "/dev/nvidia-caps/nvidia-cap1:r"
    bundle = bed.bundle([item], (*DEVICES, "NVIDIA_MIG_CONFIG_DEVICES=all"), change=in_user_namespace)

    ran = allowing.run(bundle)

    assert (ran.code, ran.err, ran.opens) == (0, "", {item: "EACCES"})


def test_without_any_rule(seed: Seed) -> None:
    """crun filters nothing then, and one allow rule would close the rest; runc denies what no rule allows."""

    def without_rules(config: dict[str, Any]) -> None:
        config["linux"]["resources"]["devices"] = []

    other = f"c:{seed.node.caps_major}:500:r"
    bundle = seed.bed.bundle([*ASKED, other], (*DEVICES, *MONITOR), change=without_rules)
    plain = seed.bed.run(seed.bed.bundle([other], change=without_rules))

    ran = seed.run(bundle)

    assert (ran.code, ran.err) == (0, "")
    assert {ran.opens[item] for item in ASKED} == {"ENXIO"}
    assert ran.opens[other] == plain.opens[other]


def with_the_hosts_dev(config: dict[str, Any]) -> None:
    config["mounts"] = [one for one in config["mounts"] if not one["destination"].startswith("/dev")]
    config["mounts"].append({"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]})


def test_nothing_lands_in_the_hosts_dev(seed: Seed) -> None:
    """A container that is given the host's /dev, as privileged agents are: no node is made there, the rules are."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has nodes of a real driver")

    item = f"c:{seed.node.caps_major}:2:r"
    bundle = seed.bed.bundle(["/dev/nvidia0:rw", item], (*DEVICES, *MONITOR), change=with_the_hosts_dev)

    ran = seed.run(bundle)

    assert (ran.code, ran.err) == (0, "")
    assert ran.opens == {"/dev/nvidia0:rw": "ENOENT", item: "ENXIO"}
    assert [path for path in Path("/dev").iterdir() if path.name.startswith("nvidia")] == []


HYBRID = """
mount --make-rprivate /
unified=/sys/fs/cgroup/unified
mkdir -p $unified
mountpoint -q $unified || mount -t cgroup2 none $unified
exec "$@"
"""


def test_both_versions_of_cgroups_at_once(tmp_path: Path) -> None:
    """A hybrid host: v1 has the devices, v2 is mounted beside it. crun refuses that, whatever its age."""
    cell = Cell("host", "runc", "v1")
    if reason := lacking(cell):
        pytest.skip(reason)
    bed = Bed(cell, tmp_path)
    seed = Seed(bed, bed.directory / "hybrid")
    bundle = seed.bundle(*DEVICES, *MONITOR, admin=True)
    argv = [SHIM, "--root", str(bed.directory / "run"), "run", "--bundle", str(bundle), "gpushim-test-hybrid"]
    command = ["unshare", "-m", "sh", "-ec", HYBRID, "sh", *argv]

    done = subprocess.run(command, env={**os.environ, **seed.env}, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    opens = Ran(done.returncode, done.stdout, done.stderr).opens
    assert (opens["/dev/nvidia-caps/nvidia-cap2:r"], opens["/dev/nvidia0:rw"]) == ("ENXIO", "ENXIO")
    assert opens[f"c:{seed.node.caps_major}:500:r"] == "EPERM"
