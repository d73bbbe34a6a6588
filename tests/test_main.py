"""The installed shim from the engine's side: what it edits, what it leaves, what it says."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushim import argv, main
from gpushim.errors import Refused
from tests.conftest import BIN, Shim

SEED = [
    "PATH=/bin",
    "MPS_ROOT=/run/nvidia/mps",
    "MIG_STRATEGY=mixed",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_MIG_MONITOR_DEVICES=all",
]


def pod(*env: str, admin: bool = True, **more: Any) -> str:
    capabilities = {"bounding": ["CAP_SYS_ADMIN"] if admin else []}
    process = {"env": list(env), "capabilities": capabilities}
    return json.dumps({"process": process, "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}, **more})  # fmt: skip


def nodes(shim: Shim) -> list[str]:
    config = json.loads(shim.config.read_text())
    return [device["path"].removeprefix("/dev/") for device in config["linux"]["devices"]]


def test_the_reporters_pod_gets_its_devices(shim: Shim) -> None:
    shim.config.write_text(pod(*SEED))

    done = shim.create()

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ran create --bundle {shim.bundle} id\n"
    assert nodes(shim) == [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        *[f"nvidia-caps/nvidia-cap{n}" for gi in range(7, 14) for n in (3 + 9 * gi, 4 + 9 * gi)],
        "nvidia-caps/nvidia-cap2",
    ]
    assert "hooks" not in json.loads(shim.config.read_text())


@pytest.mark.parametrize("command", ["create", "run", "restore"])
def test_each_command_that_makes_a_container_edits(shim: Shim, command: str) -> None:
    shim.config.write_text(pod(*SEED))

    assert shim.create(command=command).returncode == 0
    assert "nvidia0" in nodes(shim)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([], id="nothing"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=void"], id="void"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES="], id="empty"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES"], id="without-equals"),
    ],
)
def test_a_container_that_asks_for_nothing_is_byte_identical(shim: Shim, env: list[str]) -> None:
    text = "  " + pod(*env).replace(":", " : ")
    shim.config.write_text(text)

    assert shim.create().returncode == 0
    assert shim.config.read_text() == text


def test_another_config_of_crun_is_the_one_that_is_edited(shim: Shim) -> None:
    """crun takes --config from where it was started, not from the bundle."""
    crun = shim.directory / "crun"
    crun.write_text(shim.runtime.read_text())
    crun.chmod(0o755)
    shim.toml.write_text(shim.toml.read_text().replace(str(shim.runtime), str(crun)))
    shim.config.write_text(pod())
    other = shim.directory / "other.json"
    other.write_text(pod(*SEED))
    words = [
        str(BIN / "gpushim-runtime"),
        "create",
        "--config",
        "other.json",
        "--bundle",
        str(shim.bundle),
        "id",
    ]

    done = subprocess.run(words, env=shim.env, cwd=shim.directory, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "/dev/nvidia0" in other.read_text()
    assert shim.config.read_text() == pod()


def test_a_second_run_leaves_the_file_alone(shim: Shim) -> None:
    shim.config.write_text(pod(*SEED))
    shim.create()
    first = shim.config.stat()

    assert shim.create().returncode == 0
    assert shim.config.stat().st_ino == first.st_ino


def test_a_refusal_comes_before_the_runtime(shim: Shim) -> None:
    text = pod(*SEED, admin=False)
    shim.config.write_text(text)
    log = shim.directory / "log.json"

    done = shim.create("--log", str(log), "--log-format", "json")

    message = (
        "gpushim: GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused: needs CAP_SYS_ADMIN in the container's bounding set\n"
        'hint: gpushim.policy.mig-monitor = "sys-admin" decides; '
        'gpushim.policy.mig-monitor = "allow" in config.toml allows it'
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message + "\n")
    assert shim.config.read_text() == text
    entry = json.loads(log.read_text())
    assert (entry["level"], entry["msg"]) == ("error", message)


def test_a_text_log_is_in_the_runtimes_text_form(shim: Shim) -> None:
    shim.config.write_text(pod("NVIDIA_VISIBLE_DEVICES=9"))
    log = shim.directory / "log"

    shim.create("--log", str(log))

    line = log.read_text()
    assert line.startswith('time="20')
    assert "level=error msg=\"gpushim: GS0205: NVIDIA_VISIBLE_DEVICES: unknown device '9'\\nhint: " in line


@pytest.mark.node("no-driver")
def test_without_a_driver_a_request_is_an_error(shim: Shim) -> None:
    text = pod(*SEED)
    shim.config.write_text(text)

    done = shim.create()

    assert done.returncode == 1
    assert done.stderr == (
        "gpushim: GS0401: NVIDIA_VISIBLE_DEVICES: asks for a GPU while no NVIDIA driver is loaded\n"
        "hint: load it (`modprobe nvidia`), or let such containers start without a GPU: "
        'gpushim.on-no-driver = "ignore"\n'
    )
    assert shim.config.read_text() == text


@pytest.mark.node("no-driver")
def test_without_a_driver_a_request_may_be_ignored(shim: Shim) -> None:
    shim.add('[gpushim]\non-no-driver = "ignore"')
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook"}
    shim.config.write_text(pod(*SEED, hooks={"prestart": [hook]}))

    assert shim.create().returncode == 0
    config = json.loads(shim.config.read_text())
    assert "devices" not in config["linux"]
    assert config["hooks"] == {"prestart": []}


def test_devices_by_environment_may_be_left_to_privileged_containers(shim: Shim) -> None:
    shim.toml.write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n" + shim.toml.read_text()
    )
    text = pod("NVIDIA_VISIBLE_DEVICES=all", admin=False)
    shim.config.write_text(text)

    assert shim.create().returncode == 0
    assert shim.config.read_text() == text

    shim.config.write_text(pod("NVIDIA_VISIBLE_DEVICES=all"))
    assert shim.create().returncode == 0
    assert "nvidia0" in nodes(shim)


def test_a_forged_record_is_dropped(shim: Shim) -> None:
    shim.config.write_text(pod(annotations={"dev.gpushim/injected": "forged"}))

    assert shim.create().returncode == 0
    assert json.loads(shim.config.read_text())["annotations"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param("[gpushim\n", "config.toml:", id="no-toml"),
        pytest.param(
            '[gpushim.policy]\nmig-monitor = "maybe"\n', "gpushim.policy.mig-monitor", id="wrong-value"
        ),
    ],
)
def test_broken_settings_fail_only_who_asks(shim: Shim, settings: str, message: str) -> None:
    shim.toml.write_text(settings)
    bin_dir = shim.directory / "bin"
    bin_dir.mkdir()
    shutil.copy(shim.runtime, bin_dir / "runc")
    shim.env["PATH"] = f"{bin_dir}:{shim.env['PATH']}"
    text = pod(*SEED)
    shim.config.write_text(text)

    asking = shim.create()
    shim.config.write_text(pod())
    plain = shim.create()
    shim.config.write_text(pod("NVIDIA_VISIBLE_DEVICES=void"))
    void = shim.create()
    deleting = shim.create(command="delete")

    assert asking.returncode == 1
    assert asking.stderr.startswith("gpushim: GS05") and message in asking.stderr
    assert [done.returncode for done in (plain, void, deleting)] == [0, 0, 0]
    assert deleting.stdout.startswith("ran delete")


def test_the_debug_log_has_one_line_a_create(shim: Shim) -> None:
    log = shim.directory / "debug"
    shim.add(f'[gpushim]\nlog = "{log}"')
    shim.config.write_text(pod(*SEED))

    shim.create()

    assert log.read_text().count("\n") == 1
    assert "create id " in log.read_text() and "node /dev/nvidia0 195:0 mode 0666" in log.read_text()


class RecordingSyslog:
    """What stands in for the C library's syslog, which a test cannot read back."""

    LOG_PID = LOG_AUTH = LOG_NOTICE = LOG_DAEMON = LOG_INFO = 0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def openlog(self, *arguments: object) -> None:
        pass

    def syslog(self, priority: int, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize("admin", [True, False])
def test_what_can_change_the_node_is_told_to_the_systems_log(shim: Shim, monkeypatch: pytest.MonkeyPatch, admin: bool) -> None:  # fmt: skip
    recorded = RecordingSyslog()
    monkeypatch.setitem(sys.modules, "syslog", recorded)
    monkeypatch.setattr("posix.environ", {key.encode(): value.encode() for key, value in shim.env.items()})
    shim.config.write_text(pod(*SEED, "NVIDIA_MIG_CONFIG_DEVICES=all", admin=admin))
    call = argv.parse(["create", "--bundle", str(shim.bundle), "web-1"])

    if admin:
        main.prepare(call, "gpushim-runtime", str(shim.runtime))
    else:
        with pytest.raises(Refused):
            main.prepare(call, "gpushim-runtime", str(shim.runtime))

    (line,) = recorded.lines
    verdict = "granted by" if admin else "refused: needs CAP_SYS_ADMIN in the container's bounding set"
    assert line.startswith(f"create web-1: mig-config: NVIDIA_MIG_CONFIG_DEVICES: {verdict}")


# ---- bad bundles ----


def test_a_bundle_that_is_missing_or_no_directory(shim: Shim) -> None:
    for bundle in (shim.directory / "none", shim.runtime):
        shim.bundle = bundle

        done = shim.create()

        assert done.returncode == 1
        assert done.stderr == f"gpushim: GS0001: {bundle}/config.json: {_why(bundle)}\n"


def _why(bundle: Path) -> str:
    return "Not a directory" if bundle.exists() else "No such file or directory"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        pytest.param('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"', "gpushim: GS0103: ", id="truncated"),
        pytest.param("NVIDIA_VISIBLE_DEVICES\x00\xff", "gpushim: GS0103: ", id="binary"),
        pytest.param('{"a":' * 100_000 + '"NVIDIA_VISIBLE_DEVICES"', "gpushim: GS010", id="deep"),
        pytest.param("", "gpushim: GS0103: ", id="empty"),
    ],
)
def test_a_config_that_is_none(shim: Shim, text: str, start: str) -> None:
    shim.config.write_text(text)

    done = shim.create()

    assert done.returncode == 1
    assert done.stderr.startswith(start), done.stderr
    assert "Traceback" not in done.stderr
    assert shim.config.read_text() == text


def test_a_full_disk_leaves_the_file_as_it_was(shim: Shim) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    text = pod(*SEED, padding="x" * 60_000)
    script = f"""
mount -t tmpfs -o size=100k tmpfs {shim.bundle}
cp {shim.directory}/text {shim.config}
{BIN}/gpushim-runtime create --bundle {shim.bundle} id; echo "exit $?"
cmp {shim.directory}/text {shim.config} && ls -A {shim.bundle}
"""
    (shim.directory / "text").write_text(text)

    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=shim.env, capture_output=True, text=True)

    assert done.stdout == "exit 1\nconfig.json\n"
    assert done.stderr == f"gpushim: GS0001: {shim.config}: No space left on device\n"


def test_a_directory_that_cannot_be_written(shim: Shim) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    shim.config.write_text(pod(*SEED))
    script = f"""
mount --bind {shim.bundle} {shim.bundle}; mount -o remount,bind,ro {shim.bundle}
{BIN}/gpushim-runtime create --bundle {shim.bundle} id; echo "exit $?"
"""

    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=shim.env, capture_output=True, text=True)

    assert done.stdout == "exit 1\n"
    assert done.stderr == f"gpushim: GS0001: {shim.config}: Read-only file system\n"
    assert shim.config.read_text() == pod(*SEED)


@pytest.mark.node("gpu-hangs")
def test_a_gpu_that_hangs_costs_those_who_name_it(shim: Shim) -> None:
    shim.add("[gpushim]\ndriver-timeout = 1")
    shim.config.write_text(pod("NVIDIA_VISIBLE_DEVICES=0"))
    healthy = shim.create()
    assert healthy.returncode == 0, healthy.stderr

    hanging = [gpu["index"] for gpu in json.loads(shim.ctl("node", "--json").stdout)["gpus"] if gpu["fault"]]
    shim.config.write_text(pod(f"NVIDIA_VISIBLE_DEVICES={hanging[0]}"))
    done = shim.create()

    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushim: GS0404: NVIDIA_VISIBLE_DEVICES: GPU {hanging[0]} (")
    assert "no answer in 1 s" in done.stderr


# ---- passing through ----


def test_signals_pass_through_as_they_were(shim: Shim) -> None:
    shim.runtime.write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    for asked in (pod(), pod(*SEED)):
        shim.config.write_text(asked)
        ignored = int(shim.create().stdout.split()[1], 16)
        # subprocess restores both in its child, so neither was ignored.
        assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_the_exit_status_of_the_runtime_passes_through(shim: Shim) -> None:
    shim.runtime.write_text("#!/bin/sh\nexit 7\n")
    shim.config.write_text(pod(*SEED))

    assert shim.create().returncode == 7


def test_nothing_of_an_attackers_environment_or_directory_is_run(shim: Shim, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("sitecustomize", "usercustomize", "json", "posixpath", "gpushim", "encodings"):
        (trap / f"{name}.py").write_text(f"open({str(canary)!r}, 'w').write({name!r})\n")
    shim.env |= {
        "PYTHONPATH": str(trap),
        "PYTHONHOME": str(trap),
        "PYTHONSTARTUP": str(trap / "json.py"),
        "PYTHONINSPECT": "1",
    }
    shim.config.write_text(pod(*SEED))

    words = [str(BIN / "gpushim-runtime"), "create", "--bundle", str(shim.bundle), "id"]
    done = subprocess.run(words, env=shim.env, cwd=trap, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert not canary.exists()


def test_many_creates_at_once_from_an_empty_state(shim: Shim) -> None:
    text = pod(*SEED)
    bundles = [shim.directory / f"b{n}" for n in range(60)]
    for bundle in bundles:
        bundle.mkdir()
        (bundle / "config.json").write_text(text)
    argv = [str(BIN / "gpushim-runtime"), "create", "--bundle"]

    started = [
        subprocess.Popen([*argv, str(b), "id"], env=shim.env, stdout=subprocess.DEVNULL) for b in bundles
    ]

    assert {process.wait() for process in started} == {0}
    assert len({(bundle / "config.json").read_text() for bundle in bundles}) == 1
    assert sorted(path.name for path in bundles[0].iterdir()) == ["config.json"]
    left = [path.name for path in shim.state.iterdir() if path.name.endswith(".tmp")]
    assert left == []


def test_python_is_the_one_beside_the_launcher() -> None:
    assert (BIN / f"python3.{sys.version_info.minor}").exists()


def test_a_settings_file_whose_name_is_no_text_is_told(shim: Shim) -> None:
    shim.config.write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    shim.env["GPUSHIM_CONFIG"] = f"{shim.directory}/none\udcff.toml"

    done = shim.create()

    assert done.returncode == 1
    assert "GS0501" in done.stderr
    assert "Traceback" not in done.stderr
