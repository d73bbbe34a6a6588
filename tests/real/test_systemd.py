"""Containers whose cgroups systemd manages: what is given stays, and what systemd was not told is lost."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakenode import real_majors
from tests.real.bed import BIN
from tests.real.systemd import CELLS, PINNING, Scope, SystemdBed
from tests.real.test_hook import Hooked
from tests.real.test_seed import GPU, INSTANCES, MONITORED, NOT_CONFIGURED, REPORTER, SHIM, Seed

GIVEN = GPU | INSTANCES | MONITORED | NOT_CONFIGURED


@pytest.fixture(scope="module", params=CELLS, ids=str)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdBed]:
    booted = SystemdBed(request.param, tmp_path_factory.mktemp(f"systemd-{request.param}"))
    yield booted
    booted.stop()


def node_directory(bed: SystemdBed) -> Path:
    return bed.directory / f"node{len(list(bed.directory.iterdir()))}"


# What makes systemd build a unit's filter anew, each by itself.
CHANGES: "dict[str, Callable[[Scope], object]]" = {
    "daemon-reload": lambda scope: scope.systemctl("daemon-reload"),
    "set-property": lambda scope: scope.systemctl("set-property", "--runtime", scope.unit, "CPUWeight=77"),
    "daemon-reexec": lambda scope: scope.systemctl("daemon-reexec"),
    "update": lambda scope: scope.runtime("update", "--pids-limit", "99"),
}


def lost_after(seed: Seed, scope: Scope) -> list[str]:
    """The changes after which not everything opens any more."""
    assert seed.named(scope.opens()) == GIVEN
    lost = []
    for name, change in CHANGES.items():
        change(scope)
        if seed.named(scope.opens()) != GIVEN:
            lost.append(name)
    return lost


def devices(seed: Seed, scope: Scope) -> tuple[int, dict[str, Any]]:
    root = str(seed.bed.directory / "run")
    ran = scope.bed.enter(str(BIN / "gpushim"), "devices", scope.name, "--json", "--root", root, env=seed.env)
    return ran.code, json.loads(ran.out)


def test_nothing_that_the_shim_gave_is_lost(bed: SystemdBed) -> None:
    seed = Seed(bed, node_directory(bed))
    # runc 1.1.3 to 1.1.6 tells systemd of a device only where /dev/char leads to it: the node is this bed's own.
    bed.own_dev(seed.settings.parent / "dev")
    seed.settings.write_text(
        seed.settings.read_text().replace(f'dev = "{seed.settings.parent}"', 'dev = "/"')
    )
    scope = bed.start(seed.bundle(*REPORTER, admin=True), SHIM, env=seed.env)

    assert lost_after(seed, scope) == []
    code, report = devices(seed, scope)
    assert (code, {row["opens"] for row in report["devices"] if row["asked"]}) == (0, {True})
    scope.delete()


def test_nothing_that_the_hook_gave_is_lost_unless_a_program_is_pinned(bed: SystemdBed) -> None:
    hooked = Hooked(bed, node_directory(bed))
    scope = bed.start(hooked.bundle(*REPORTER, admin=True))
    if bed.cell == PINNING:
        check_pinned(hooked, scope)
    else:
        assert lost_after(hooked, scope) == []
        assert hooked.log == ""
        code, report = devices(hooked, scope)
        assert (code, {row["opens"] for row in report["devices"] if row["asked"]}) == (0, {True})
    scope.delete()


def check_pinned(hooked: Hooked, scope: Scope) -> None:
    """The hook says what will be lost, and `devices` what was."""
    assert hooked.named(scope.opens()) == GIVEN
    assert f"warning: {scope.unit}: the runtime has pinned its device program at /sys/fs/bpf/" in hooked.log

    scope.systemctl("daemon-reload")

    assert hooked.named(scope.opens())["cap2:r"] == "EPERM"
    code, report = devices(hooked, scope)
    row = next(row for row in report["devices"] if row["path"] == "/dev/nvidia-caps/nvidia-cap2")
    assert (code, row["opens"], row["lost"], row["node"]) == (1, False, True, "present")
    assert row["denied_by"].startswith("program ")


def test_what_systemd_was_not_told_is_lost_and_devices_says_who_denies(bed: SystemdBed) -> None:
    """Rules behind systemd's back, as the toolkit's hook sets them: the fault that users report most."""
    hooked = Hooked(bed, node_directory(bed))
    hooked.before = "mkdir -p /run/hidden && mount --bind /run/hidden /run/systemd"
    scope = bed.start(hooked.bundle(*REPORTER, admin=True))
    assert hooked.named(scope.opens()) == GIVEN

    scope.systemctl("daemon-reload")

    opens = hooked.named(scope.opens())
    code, report = devices(hooked, scope)
    row = next(row for row in report["devices"] if row["path"] == "/dev/nvidia-caps/nvidia-cap2")
    if bed.cell.runtime == "crun" and bed.cell != PINNING:
        # Its own program is on a cgroup below the scope, which systemd knows nothing of.
        assert (opens, code) == (GIVEN, 0)
    else:
        assert opens["cap2:r"] == "EPERM"
        assert (code, row["opens"], row["lost"], row["node"]) == (1, False, True, "present")
        assert "devices.list has no line for it" in row["denied_by"] or "program " in row["denied_by"]
    scope.delete()


def test_what_devices_says_is_what_a_process_finds(bed: SystemdBed) -> None:
    """Of the programs that systemd itself builds, too."""
    hooked = Hooked(bed, node_directory(bed))
    scope = bed.start(hooked.bundle(*REPORTER, admin=True))
    scope.systemctl("daemon-reload")

    opens = scope.opens().opens
    _, report = devices(hooked, scope)

    said = {row["path"]: row["cgroup"] for row in report["devices"]}
    found = {}
    for item, answer in opens.items():
        path, _, mode = item.rpartition(":")
        if path in said and answer in ("ENXIO", "EPERM"):
            found[item] = all(said[path][letter] for letter in mode) == (answer == "ENXIO")
    assert len(found) >= 6
    assert set(found.values()) == {True}
    scope.delete()


# python -c ASK PID ITEM...: what the cgroup of PID answers to each question c:MAJOR:MINOR:MODE, as the prober would.
ASK = """
import sys
from gpushim.ctl.cgroup_view import of_process
view = of_process(int(sys.argv[1]), None)
for item in sys.argv[2:]:
    _, major, minor, mode = item.split(":")
    answers = [view.ask(int(major), int(minor), letter).allowed for letter in mode]
    print(item, "unknown" if None in answers else "ENXIO" if all(answers) else "EPERM")
"""


def test_the_programs_of_systemd_answer_as_the_kernel_does(bed: SystemdBed) -> None:
    """Of systemd's own making after a reload, beside or above those of the runtime."""
    hooked = Hooked(bed, node_directory(bed))
    majors = {hooked.node.caps_major, 195, *range(240, 247)} - real_majors()
    items = [
        f"c:{major}:{minor}:{mode}"
        for major in sorted(majors)
        for minor in (0, 1, 2, 66, 255)
        for mode in ("r", "w", "rw")
    ]
    scope = bed.start(hooked.bundle(*REPORTER, admin=True))
    scope.systemctl("set-property", "--runtime", scope.unit, "CPUWeight=77")
    scope.items = items

    found = scope.opens().opens
    said = bed.enter(sys.executable, "-c", ASK, str(scope.state()["pid"]), *items)

    assert said.code == 0, said.err
    assert len(items) >= 100
    assert said.opens == found
    scope.delete()
