"""`gpushim hook`: the file in hooks.d, written, written again, and taken away."""

import json
from pathlib import Path

import pytest

from tests.conftest import BIN, Shim

EXPECTED = {
    "version": "1.0.0",
    "hook": {
        "path": str(BIN / "gpushim-hook"),
        "args": ["gpushim-hook", "create-runtime"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    },
    "when": {"always": True},
    "stages": ["createRuntime"],
}


def test_print_shows_the_file(shim: Shim) -> None:
    assert json.loads(shim.ctl("hook", "print", "podman").stdout) == EXPECTED


def test_print_with_every_option(shim: Shim) -> None:
    options = [
        "--rootless",
        "--config",
        "/c",
        "--state",
        "/s",
        "--annotation",
        "a.b/c=x.*",
        "--annotation",
        "d",
    ]

    found = json.loads(shim.ctl("hook", "print", "crio", *options).stdout)

    assert found["hook"]["args"] == ["gpushim-hook", "--config", "/c", "--state", "/s", "create-container"]
    assert found["when"] == {"annotations": {"a.b/c": "x.*", "d": ".*"}}
    assert found["stages"] == ["createContainer"]


def test_install_writes_it_once_and_remove_takes_it_away(shim: Shim, tmp_path: Path) -> None:
    directory = tmp_path / "not/there"
    path = directory / "50-gpushim.json"
    options = ["podman", "--directory", str(directory)]

    first = shim.ctl("hook", "install", *options)
    inode = path.stat().st_ino
    second = shim.ctl("hook", "install", *options)

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == f"{path}: written: podman reads it at the next container\n"
    assert second.stdout == f"{path}: is as it should be\n"
    assert path.stat().st_ino == inode
    assert json.loads(path.read_text()) == EXPECTED
    assert path.stat().st_mode & 0o777 == 0o644

    assert shim.ctl("hook", "remove", *options).stdout == f"{path}: removed\n"
    assert shim.ctl("hook", "remove", *options).stdout == f"{path}: is not there\n"
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_file_that_is_not_ours_stays(shim: Shim, tmp_path: Path, command: str) -> None:
    path = tmp_path / "50-gpushim.json"
    path.write_text("{}")

    done = shim.ctl("hook", command, "crio", "--directory", str(tmp_path))

    assert done.returncode == 1
    assert (
        done.stderr
        == f"gpushim: GS0820: {path}: is not of gpushim: it stays as it is\nhint: move it away, or --directory\n"
    )
    assert path.read_text() == "{}"


def test_nvidias_hook_beside_it_is_warned_of(shim: Shim, tmp_path: Path) -> None:
    other = tmp_path / "oci-nvidia-hook.json"
    other.write_text('{"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}')

    done = shim.ctl("hook", "install", "podman", "--directory", str(tmp_path))

    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {other} starts NVIDIA's hook too")
