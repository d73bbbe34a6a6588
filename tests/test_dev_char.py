"""gpushim.dev_char: links in /dev/char, only where a runtime or systemd needs them."""

import os
from pathlib import Path

import pytest

from gpushim import dev_char
from gpushim.selection import Device
from tests.conftest import Shim
from tests.test_main import SEED, pod


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runc version 1.1.5+ds1", (1, 1, 5)),
        ("runc version 1.1.6", (1, 1, 6)),
        ("runc version 1.3.0-rc.1", (1, 3, 0)),
        ("runc version 1.0.0~rc93", (1, 0, 0)),
        ("crun", ()),
        ("", ()),
    ],
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert dev_char.parse_version(text) == version


def runc(directory: Path, version: str) -> str:
    path = directory / "runc"
    path.write_text(f'#!/bin/sh\necho x >> {directory}/asked\necho "runc version {version}"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "systemd", "expected"),
    [("1.1.2", 252, False), ("1.1.3", 252, True), ("1.1.6+ds1", 252, True), ("1.1.7", 252, False), ("1.3.0", 239, True), ("1.3.0", 0, False)],
)  # fmt: skip
def test_who_needs_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, systemd: int, expected: bool) -> None:  # fmt: skip
    monkeypatch.setattr(dev_char, "_systemd_version", lambda: systemd)

    assert dev_char.wanted("auto", runc(tmp_path, version), str(tmp_path / "state")) is expected


def test_a_runtime_is_asked_once(tmp_path: Path) -> None:
    path, state = runc(tmp_path, "1.1.5"), str(tmp_path / "state")

    for _ in range(3):
        assert dev_char.wanted("auto", path, state)
    assert (tmp_path / "asked").read_text() == "x\n"
    runc(tmp_path, "1.1.7+other")

    assert dev_char._faulty_runc(path, state) is False
    assert (tmp_path / "asked").read_text() == "x\nx\n"


def test_settings_win(tmp_path: Path) -> None:
    assert dev_char.wanted("always", "/none", str(tmp_path))
    assert not dev_char.wanted("never", "/none", str(tmp_path))
    assert not dev_char._faulty_runc("/usr/bin/crun", str(tmp_path))


def test_links_are_made_for_nodes_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "dev/char").mkdir(parents=True)
    (tmp_path / "dev/char/195:1").symlink_to("../kept")
    devices = [Device(f"/dev/nvidia{n}", 195, n, "rw", "a test") for n in range(4)]
    devices.append(Device("/dev/nvidia-caps/nvidia-cap2", 237, 2, "r", "a test"))
    for device in devices:
        device.host = (device.major, device.minor)
    devices[2].host, devices[3].host = None, (1, 2)

    assert dev_char.link(str(tmp_path), devices) == []

    links = {path.name: os.readlink(path) for path in (tmp_path / "dev/char").iterdir()}
    assert links == {"195:0": "../nvidia0", "195:1": "../kept", "237:2": "../nvidia-caps/nvidia-cap2"}


def test_a_link_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    device = Device("/dev/nvidia0", 195, 0, "rw", "a test")
    device.host = (195, 0)

    assert dev_char.link(str(tmp_path), [device]) == [
        f"{tmp_path}/dev/char/195:0: No such file or directory: the container may lose /dev/nvidia0 at a daemon-reload"
    ]


@pytest.mark.parametrize(("options", "linked"), [(["--systemd-cgroup"], True), ([], False)])
def test_the_shim_links_under_systemds_cgroups_alone(shim: Shim, options: list[str], linked: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root")
    shim.runtime.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "runc version 1.1.5"\nexit 0\n')
    (shim.root / "dev/char").mkdir()
    shim.config.write_text(pod(*SEED))

    assert shim.create(*options).returncode == 0
    assert (shim.root / "dev/char/195:0").is_symlink() is linked
