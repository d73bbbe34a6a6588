"""`gpushim explain`: the shim's decisions, told and not carried out."""

import json

import pytest

from tests.conftest import Shim
from tests.test_main import SEED, pod


def test_the_reporters_pod_is_explained(shim: Shim) -> None:
    text = pod(*SEED)
    shim.config.write_text(text)

    done = shim.ctl("explain", str(shim.bundle))

    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "NVIDIA_VISIBLE_DEVICES = all",
        "NVIDIA_MIG_MONITOR_DEVICES (mig-monitor)",
        'granted  gpushim.policy.mig-monitor = "sys-admin"',
        "/dev/nvidia-modeset",
    ):
        assert words in done.stdout
    monitor = "/dev/nvidia-caps/nvidia-cap2 237:2 0444 r NVIDIA_MIG_MONITOR_DEVICES"
    assert monitor in [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shim.config.read_text() == text


def test_json_says_the_same(shim: Shim) -> None:
    shim.config.write_text(pod(*SEED))

    report = json.loads(shim.ctl("explain", "--json", str(shim.bundle)).stdout)

    assert report["schema"] == 1
    assert report["asked"] == {
        "source": "NVIDIA_VISIBLE_DEVICES",
        "value": "all",
        "devices": ["all"],
        "driver_capabilities": ["compute", "utility"],
        "extras": {"mig-monitor": "NVIDIA_MIG_MONITOR_DEVICES"},
        "management": [],
        "imex_channels": [],
    }
    assert [verdict["granted"] for verdict in report["policy"]] == [True, True]
    assert {
        "edit": "rule",
        "major": 237,
        "minor": 2,
        "access": "r",
        "text": "rule allow c 237:2 r",
        "why": "NVIDIA_MIG_MONITOR_DEVICES",
    } in report["edits"]
    assert (report["warnings"], report["error"]) == ([], None)


def test_what_is_explained_is_what_is_done(shim: Shim) -> None:
    shim.config.write_text(pod(*SEED))
    report = json.loads(shim.ctl("explain", "--json", str(shim.bundle)).stdout)

    shim.create()

    devices = json.loads(shim.config.read_text())["linux"]["devices"]
    assert [edit["path"] for edit in report["edits"] if edit["edit"] == "device"] == [
        d["path"] for d in devices
    ]


def test_a_refusal_is_explained(shim: Shim) -> None:
    shim.config.write_text(pod(*SEED, admin=False))

    done = shim.ctl("explain", str(shim.bundle))
    report = json.loads(shim.ctl("explain", "--json", str(shim.bundle)).stdout)

    assert done.returncode == 1
    assert "GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused" in done.stdout
    assert report["error"]["id"] == "GS0301"
    assert [verdict["granted"] for verdict in report["policy"]] == [True, False]
    assert report["edits"] == []


def test_nothing_asked_is_said(shim: Shim) -> None:
    shim.config.write_text(pod("NVIDIA_VISIBLE_DEVICES=void"))

    done = shim.ctl("explain", str(shim.bundle))

    assert done.returncode == 0
    assert "for no GPU" in done.stdout
    assert "byte for byte" in done.stdout


@pytest.mark.parametrize("words", ["[red]", "[/]", "\\[bold", "\x1b[31mred"])
def test_a_hostile_value_is_shown_as_it_is(shim: Shim, words: str) -> None:
    shim.config.write_text(pod(f"NVIDIA_VISIBLE_DEVICES={words}"))

    done = shim.ctl("explain", str(shim.bundle))

    assert done.returncode == 1
    assert f"NVIDIA_VISIBLE_DEVICES = {words}".replace("\x1b", "\\x1b") in done.stdout
    assert "\x1b" not in done.stdout


def test_a_bundle_that_is_none(shim: Shim) -> None:
    missing = shim.ctl("explain", str(shim.bundle))
    shim.config.write_text("{")
    broken = shim.ctl("explain", str(shim.bundle))
    usage = shim.ctl("explain")

    assert (missing.returncode, broken.returncode, usage.returncode) == (1, 1, 2)
    assert missing.stderr == f"gpushim: GS0001: {shim.config}: No such file or directory\n"
    assert broken.stderr.startswith(f"gpushim: GS0103: {shim.config}: ")
