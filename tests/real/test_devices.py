"""`gpushim devices` of real containers: what it says is what a process in there finds."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.real.bed import BIN, Bed
from tests.real.test_hook import Hooked
from tests.real.test_odd_containers import in_user_namespace
from tests.real.test_seed import DEVICES, REPORTER, SHIM, Seed

# sh -c ASK BUNDLE NAME COMMAND RUNTIME...: COMMAND about the container while it is there, created and not started.
ASK = """set -e
name=$1 command=$2
shift 2
"$@" create --bundle "$0" "$name" >"$0/out" 2>&1 </dev/null || { cat "$0/out"; exit 9; }
code=0
$command "$name" || code=$?
"$@" delete --force "$name"
exit $code
"""


def devices(seed: Seed, bundle: Path, program: str = "", *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of `gpushim devices --json` about the container of *bundle* under *program*."""
    name, runtime = seed.bed._container(program)
    command = " ".join(
        [str(BIN / "gpushim"), "devices", "--json", "--root", str(seed.bed.directory / "run"), *options]
    )
    ran = seed.bed.enter("sh", "-c", ASK, str(bundle), name, command, *runtime, env=seed.env)
    assert ran.out.startswith("{"), ran.out + ran.err
    return ran.code, json.loads(ran.out)


def short(report: dict[str, Any], seed: Seed) -> dict[str, tuple[Any, ...]]:
    """Path → asked, node, cgroup, opens."""
    return {
        row["path"].removeprefix("/dev/"): (row["asked"], row["node"], letters(row["cgroup"]), row["opens"])
        for row in report["devices"]
    }


def letters(answers: dict[str, bool | None]) -> str:
    return "".join({True: letter, False: "-", None: "?"}[value] for letter, value in answers.items())


@pytest.fixture
def seed(bed: Bed) -> Seed:
    return Seed(bed, bed.directory / f"devices{len(list(bed.directory.iterdir()))}")


@pytest.fixture
def hooked(bed: Bed) -> Hooked:
    return Hooked(bed, bed.directory / f"devices{len(list(bed.directory.iterdir()))}")


def test_what_the_shim_gave_opens(seed: Seed) -> None:
    code, report = devices(seed, seed.bundle(*REPORTER, admin=True), SHIM)

    found = short(report, seed)
    assert (code, report["warnings"]) == (0, [])
    # runc adds `c *:* m` of its own.
    assert found["nvidia0"] == ("rw", "present", "rwm", True)
    assert found["nvidia-caps/nvidia-cap2"] == ("r", "present", "r-m", True)
    assert "nvidia-caps/nvidia-cap1" not in found
    assert {row["asked_by"] for row in report["devices"]} == {"record"}
    assert report["container"]["bundle"].startswith(str(seed.bed.directory))


def test_what_the_hook_gave_opens(hooked: Hooked) -> None:
    code, report = devices(hooked, hooked.bundle(*REPORTER, admin=True))

    found = short(report, hooked)
    assert (code, report["warnings"]) == (0, [])
    assert found["nvidia-caps/nvidia-cap2"] == ("r", "present", "r-m", True)
    assert found["nvidia-caps/nvidia-cap66"] == ("r", "present", "r-m", True)


def test_under_a_plain_runtime_it_names_what_is_missing_and_who_denies(seed: Seed) -> None:
    """The report's own fault: the pod asks, and neither node nor rule is there."""
    code, report = devices(seed, seed.bundle(*REPORTER, admin=True))

    row = next(row for row in report["devices"] if row["path"] == "/dev/nvidia-caps/nvidia-cap2")
    assert code == 1
    assert (row["asked"], row["asked_by"], row["node"], row["opens"]) == ("r", "config", "missing", False)
    assert row["cgroup"]["r"] is False
    who = "devices.list has no line for it" if seed.bed.cell.cgroup == "v1" else "program "
    assert who in row["denied_by"]


def test_a_privileged_container_is_allowed_everything(seed: Seed) -> None:
    code, report = devices(seed, seed.bundle(*REPORTER, privileged=True), SHIM)

    assert code == 0
    assert {letters(row["cgroup"]) for row in report["devices"]} == {"rwm"}


def test_a_user_namespace_and_a_mode_of_the_hosts_root(bed: Bed) -> None:
    for parent in (bed.directory, *bed.directory.parents):
        if os.stat(parent).st_mode & 0o055 != 0o055:
            os.chmod(parent, 0o755)
    settings = ["[gpushim.policy]", 'mig-config = "allow"']
    seed = Seed(bed, bed.directory / f"devices{len(list(bed.directory.iterdir()))}", *settings)
    bundle = seed.bundle(*DEVICES, "NVIDIA_MIG_CONFIG_DEVICES=all", change=in_user_namespace)

    code, report = devices(seed, bundle, SHIM)

    rows = {row["path"]: row for row in report["devices"]}
    cap1 = rows["/dev/nvidia-caps/nvidia-cap1"]
    assert code == 1
    assert (cap1["node"], cap1["mode"], cap1["uid"], cap1["user"]["r"]) == ("present", 0o400, None, False)
    assert (cap1["cgroup"]["r"], cap1["opens"]) == (True, False)
    assert rows["/dev/nvidia0"]["opens"] is True


def test_a_device_that_is_named_besides(seed: Seed) -> None:
    other = seed.bed.directory / f"other{len(list(seed.bed.directory.iterdir()))}"
    os.mknod(other, stat.S_IFCHR | 0o666, os.makedev(240, 7))
    options = ("--device", f"{other}:rw", "--device", "/dev/null")

    code, report = devices(seed, seed.bundle(*REPORTER, admin=True), SHIM, *options)

    found = short(report, seed)
    assert code == 1
    assert found[str(other)] == ("rw", "missing", "--m", False)
    assert found["null"] == ("rw", "present", "rwm", True)
