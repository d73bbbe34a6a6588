"""What systemd is told, and what is not told to it."""

from pathlib import Path

import pytest

from gpushim_hooks import systemd
from gpushim_hooks.rule import LAST_MINOR, Rule
from gpushim_hooks.systemd import Unit, _missing, _path, unit_of

STRICT = [("/dev/char/195:255", "rw"), ("/dev/char/195:0", "m"), ("char-pts", "rwm")]


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/docker-1.scope", "docker-1.scope"),
        ("/system.slice/docker-1.scope/container", "docker-1.scope"),
        ("/system.slice/docker.service/x/libpod-2.scope/container", "libpod-2.scope"),
        ("/kubepods/burstable/pod1/2", ""),
        ("/system.slice", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_cgroup(path: str, unit: str) -> None:
    assert unit_of(path) == unit


@pytest.mark.parametrize(
    ("policy", "allowed", "filters"),
    [("auto", [], False), ("auto", STRICT, True), ("strict", [], True), ("closed", [], True)],
)
def test_a_unit_that_filters_nothing_is_not_made_to(
    policy: str, allowed: list[tuple[str, str]], filters: bool
) -> None:
    assert Unit("a.scope", policy, allowed, []).filters is filters


def test_only_what_is_missing_is_told() -> None:
    unit = Unit("a.scope", "strict", STRICT, [])
    rules = [
        Rule(195, 255, 255, "rw"),
        Rule(195, 255, 255, "rwm"),
        Rule(195, 0, 0, "rw"),
        Rule(237, 1, 2, "r"),
        Rule(136, 0, LAST_MINOR, "rw"),
    ]

    missing, warnings = _missing(unit, rules)

    # Major 136 is pts, which every kernel names.
    assert missing == [
        ("/dev/char/195:255", "rwm"),
        ("/dev/char/195:0", "rwm"),
        ("/dev/char/237:1", "r"),
        ("/dev/char/237:2", "r"),
    ]
    assert warnings == []


def test_every_minor_of_a_major_without_a_name_cannot_be_told() -> None:
    _, warnings = _missing(Unit("a.scope", "strict", STRICT, []), [Rule(4000, 0, LAST_MINOR, "r")])

    assert warnings == [
        "a.scope: any minor of major 4000 cannot be told to systemd, since /proc/devices has no name for it: "
        "the access is lost at its next daemon-reload"
    ]


def test_a_systemd_that_is_not_there_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systemd, "PEERS", ((str(tmp_path / "none"), ""), (str(tmp_path / "no-bus"), "x")))

    (warning,) = systemd.allow("a.scope", [Rule(195, 0, 0, "rw")])

    assert warning.startswith("a.scope: systemd was not told (")
    assert warning.endswith("): the access is lost at its next daemon-reload")


def test_an_object_path_spells_out_what_is_no_letter() -> None:
    assert _path("docker-1.scope") == "/org/freedesktop/systemd1/unit/docker_2d1_2escope"
    assert _path("1.scope") == "/org/freedesktop/systemd1/unit/_31_2escope"
