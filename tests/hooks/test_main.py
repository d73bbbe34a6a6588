"""gpushim-hook as a command: its options, its errors, its log."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import BIN, Shim


def run(shim: Shim, *args: str, state: object = None) -> "subprocess.CompletedProcess[str]":
    options = ["--config", str(shim.toml), "--state", str(shim.state)]
    text = (
        state
        if isinstance(state, str)
        else json.dumps(state or {"id": "x", "pid": os.getpid(), "bundle": str(shim.bundle)})
    )
    return subprocess.run(
        [str(BIN / "gpushim-hook"), *options, *args], input=text, capture_output=True, text=True, timeout=30
    )


def asking(shim: Shim, **more: object) -> None:
    config = {"root": {"path": "rootfs"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, **more}
    shim.config.write_text(json.dumps(config))
    (shim.bundle / "rootfs").mkdir()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param([], "GS0706: a command is missing\nhint: create-runtime, prestart or create-container, as the stage of the hook", id="none"),
        pytest.param(["create"], "GS0706: 'create': unknown command\nhint: create-runtime, prestart or create-container, as the stage of the hook", id="unknown"),
        pytest.param(["create-runtime", "prestart"], "GS0710: 'prestart': one command, and it is 'create-runtime'", id="two"),
        pytest.param(["create-runtime", "--log"], "GS0711: --log: has no value", id="no-value"),
        pytest.param(["--more", "create-runtime"], "GS0712: '--more': unknown option", id="option"),
    ],
)  # fmt: skip
def test_a_command_line_without_meaning_is_told(shim: Shim, args: list[str], message: str) -> None:
    done = run(shim, *args)

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gpushim-hook: {message}\n")


def test_its_log_has_every_error_with_the_container(shim: Shim) -> None:
    done = run(shim, "create-runtime", state={"id": "abc", "pid": 1 << 22, "bundle": "/none"})
    again = run(shim, "create-runtime", state="")

    assert (done.returncode, again.returncode) == (1, 1)
    first, second, _hint = (shim.state / "hook.log").read_text().splitlines()
    assert first.split(" ", 1)[1] == "abc: GS0001: /none/config.json: No such file or directory"
    assert second.split(" ", 1)[1] == "-: GS0750: standard input: is empty"


def test_its_log_can_be_elsewhere(shim: Shim, tmp_path: Path) -> None:
    log = tmp_path / "other.log"

    run(shim, "--log", str(log), "create-runtime", state="")

    assert "GS0750" in log.read_text()
    assert not (shim.state / "hook.log").exists()


@pytest.mark.parametrize("stage", ["poststart", "poststop"])
def test_the_stages_of_nvidias_hook_that_do_nothing(shim: Shim, stage: str) -> None:
    done = run(shim, stage, state="no state at all")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_tells_its_version(shim: Shim) -> None:
    assert run(shim, "-version").stdout.startswith("gpushim-hook version ")


def test_a_container_that_asks_for_nothing_gets_nothing(shim: Shim) -> None:
    shim.config.write_text('{"process":{"env":["A=b"]}}')

    done = run(shim, "create-runtime")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_broken_settings_stop_only_what_asks(shim: Shim) -> None:
    shim.add("no TOML at all")
    shim.config.write_text('{"process":{"env":["A=b"]}}')

    assert run(shim, "create-runtime").returncode == 0

    shim.config.write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}')
    done = run(shim, "create-runtime")
    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushim-hook: GS0505: {shim.toml}")


def test_a_process_that_is_gone(shim: Shim) -> None:
    asking(shim)
    child = subprocess.Popen(["true"])
    child.wait()

    done = run(shim, "create-runtime", state={"id": "x", "pid": child.pid, "bundle": str(shim.bundle)})

    assert done.returncode == 1
    assert (
        done.stderr
        == f"gpushim-hook: GS0755: process {child.pid}: is gone: there is no container to give anything to\n"
    )


@pytest.mark.real
def test_a_process_of_the_host_is_given_nothing(shim: Shim) -> None:
    """A pid that was reused: it is not in a mount namespace of its own."""
    asking(shim)

    done = run(shim, "create-runtime")

    assert done.returncode == 1
    assert done.stderr.startswith(
        f"gpushim-hook: GS0756: process {os.getpid()} is in the mount namespace of this host"
    )


@pytest.mark.parametrize(
    ("root", "message"),
    [
        pytest.param({}, "GS0758: {bundle}/config.json: root.path: names no directory", id="none"),
        pytest.param(
            {"path": 7}, "GS0758: {bundle}/config.json: root.path: names no directory", id="a-number"
        ),
        pytest.param(
            {"path": "/"}, "GS0757: /: is the root of this host: nothing may be put there", id="the-hosts"
        ),
        pytest.param({"path": "gone"}, "GS0001: {bundle}/gone: No such file or directory", id="missing"),
    ],
)
def test_a_root_where_nothing_may_be_put(shim: Shim, root: dict[str, object], message: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    asking(shim, root=root)
    child = subprocess.Popen(["unshare", "-m", "sleep", "60"])
    while os.stat(f"/proc/{child.pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino:
        time.sleep(0.01)
    try:
        done = run(shim, "create-runtime", state={"id": "x", "pid": child.pid, "bundle": str(shim.bundle)})
    finally:
        child.kill()
        child.wait()

    assert done.returncode == 1
    assert done.stderr == f"gpushim-hook: {message.format(bundle=shim.bundle)}\n"


def test_a_refusal_gives_nothing(shim: Shim) -> None:
    asking(shim, process={"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"]})
    before = shim.config.read_bytes()

    done = run(shim, "create-runtime")

    assert done.returncode == 1
    assert done.stderr.startswith(
        "gpushim-hook: GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused: needs CAP_SYS_ADMIN"
    )
    assert shim.config.read_bytes() == before
