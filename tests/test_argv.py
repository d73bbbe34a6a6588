"""Command lines as runc and crun read them: our reading, and theirs, told by which config.json they open."""

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushim import argv
from gpushim.errors import InvalidCall

BOTH = ("runc", "crun")
IN_OPEN = 0x20  # sys/inotify.h


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("--", {}, id="nothing-behind-the-end-of-options"),
        pytest.param("create", {"command": "create"}, id="no-id"),
        pytest.param("create id", {"command": "create", "container_id": "id"}, id="defaults"),
        pytest.param("run -d create", {"command": "run", "container_id": "create"}, id="a-container-named-create"),
        pytest.param("--log create state x", {"command": "state", "log": "create", "container_id": "x"}, id="a-log-named-create"),
        pytest.param("--root create state x", {"command": "state", "container_id": "x"}, id="a-root-named-create"),
        pytest.param("--log=a --log-format=json state", {"command": "state", "log": "a", "log_format": "json"}, id="equals"),
        pytest.param("--log a --log b state --log=c", {"command": "state", "log": "b"}, id="the-last-before-the-command"),
        pytest.param("--systemd-cgroup run x", {"command": "run", "systemd_cgroup": True, "container_id": "x"}, id="flag"),
        pytest.param("--systemd-cgroup=false run", {"command": "run"}, id="flag-switched-off"),
        pytest.param("--cgroup-manager systemd run", {"command": "run", "systemd_cgroup": True}, id="cgroup-manager"),
        pytest.param("--cgroup-manager=cgroupfs run", {"command": "run"}, id="another-cgroup-manager"),
        pytest.param("create --bundle a -b b id", {"command": "create", "bundle": "b", "container_id": "id"}, id="the-last-bundle"),
        pytest.param("create -- --bundle a", {"command": "create", "container_id": "--bundle"}, id="end-of-options"),
        pytest.param("-- create --bundle a", {"command": "create", "bundle": "a"}, id="end-of-global-options"),
        pytest.param("--new x create --bundle a", {"command": "create", "bundle": "a"}, id="an-unknown-global-option"),
        pytest.param("create --pid-file --bundle a", {"command": "create", "container_id": "a"}, id="a-value-like-an-option"),
        pytest.param("create --help", {"command": "help"}, id="help-makes-nothing"),
        pytest.param("-h create -h", {"command": "help"}, id="a-short-flag-before-is-known"),
        pytest.param("create --pid-file --help", {"command": "create"}, id="help-as-a-value"),
        pytest.param("create --new --help", {"command": "create"}, id="help-may-be-the-value-of-a-new-option"),
        pytest.param("create --help=false", {"command": "create"}, id="no-help"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("runtime", BOTH)
def test_a_command_line_is_read(line: str, expected: dict[str, object], runtime: str) -> None:
    call = argv.parse(line.split(), f"/usr/bin/{runtime}")

    assert slots(call) == slots(argv.Call()) | expected


@pytest.mark.parametrize(
    ("runtime", "line", "expected"),
    [
        pytest.param("runc", "create -b=a", {"bundle": "a"}, id="runc-short-with-equals"),
        pytest.param("crun", "create -b=a", {"bundle": "=a"}, id="crun-short-with-equals"),
        pytest.param("crun", "create -ba", {"bundle": "a"}, id="crun-glued"),
        pytest.param("crun", "run -dba", {"bundle": "a"}, id="crun-letters"),
        pytest.param("crun", "run -db a", {"bundle": "a"}, id="crun-letters-and-a-value"),
        pytest.param("runc", "create -bundle a", {"bundle": "a"}, id="runc-one-dash"),
        pytest.param("crun", "create --bun a", {"bundle": "a"}, id="crun-prefix"),
        pytest.param("runc", "create --bundle=", {"bundle": "."}, id="runc-an-empty-bundle"),
        pytest.param("runc", "create --config c", {"config": "./c"}, id="runc-config"),
        pytest.param("runc", "create --config config.json", {"config": "./config.json"}, id="runc-config-of-that-name"),
        pytest.param("crun", "create -f config.json", {"config": "config.json"}, id="crun-config-of-that-name"),
        pytest.param("crun", "create -fc", {"config": "./c"}, id="crun-config-glued"),
        pytest.param("crun", "create --config /a/c", {"config": "/a/c"}, id="crun-absolute-config"),
        pytest.param("crun", "--log=journald:x create", {"log": ""}, id="crun-journal"),
        pytest.param("crun", "--log=file:/x create", {"log": "/x"}, id="crun-file"),
        pytest.param("runc", "--log=file:/x create", {"log": "file:/x"}, id="runc-knows-files-only"),
        pytest.param("crun", "create -?", {"command": "help"}, id="crun-question"),
        pytest.param("crun", "create --hel", {"command": "help"}, id="crun-prefix-of-help"),
    ],
)  # fmt: skip
def test_runc_and_crun_differ(runtime: str, line: str, expected: dict[str, object]) -> None:
    call = slots(argv.parse(line.split(), f"/usr/bin/{runtime}"))

    assert {key: call[key] for key in expected} == expected


@pytest.mark.parametrize("line", ["--log", "create --bundle", "create -b", "--root=a create --pid-file"])
def test_a_missing_value_is_told(line: str) -> None:
    with pytest.raises(InvalidCall) as caught:
        argv.parse(line.split())

    assert str(caught.value) == f"GS0111: {line.split()[-1]}: has no value"


def test_crun_is_told_by_its_name() -> None:
    assert argv.is_crun("/usr/bin/crun")
    assert argv.is_crun("/opt/crun-1.28")
    assert not argv.is_crun("/crun/runc")


def slots(call: argv.Call) -> dict[str, object]:
    return {name: getattr(call, name) for name in call.__slots__}


# What the runtimes at hand open. The configs are empty objects, so that nothing is ever made.


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], set[str]]]:
    """Run a command in a directory of configs: which of them it opens."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0
    names = {}
    for name in ("config.json", "other.json", "B/config.json", "B/other.json", "=B/config.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        names[libc.inotify_add_watch(fd, bytes(path), IN_OPEN)] = name
    monkeypatch.chdir(tmp_path)

    def watch(command: list[str]) -> set[str]:
        subprocess.run(command, capture_output=True, timeout=60, cwd=tmp_path)
        try:
            events = os.read(fd, 65536)
        except BlockingIOError:
            return set()
        # struct inotify_event without a name: a watched file is no directory.
        return {names[watched] for watched, *_ in struct.iter_unpack("iIII", events)}

    yield watch
    os.close(fd)


@pytest.fixture
def program(request: pytest.FixtureRequest) -> str:
    """The runtime that the test names."""
    found: str | None = shutil.which(request.param)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"missing: {request.param}")
        pytest.skip(f"missing: {request.param}")
    return found


@pytest.mark.parametrize("program", BOTH, indirect=True)
def test_the_watch_sees_what_a_runtime_opens(program: str, opened: Callable[[list[str]], set[str]]) -> None:
    assert opened([program, "create", "--bundle", "B", "id"]) == {"B/config.json"}


@pytest.mark.parametrize(
    "line",
    [
        "create id",
        "create --bundle B id",
        "create --bundle=B id",
        "create -b B id",
        "create -b=B id",
        "create -bB id",
        "create -bundle B id",
        "create --bund B id",
        "create --bundle= id",
        "create --bundle /none --bundle B id",
        "create id --bundle B",
        "create --no-pivot id --bundle B",
        "create -- id",
        "create id -- --bundle B",
        "-- create --bundle B id",
        "--log=/dev/null -- create -b B -- id",
        "--root create create -b B id",
        "--debug create -b B id",
        "create --pid-file --bundle B id",
        "create --preserve-fds 0 --bundle B id",
        "run -d --bundle B create",
        "run -db B id",
        "run -dbB id",
        "run -dfother.json -bB id",
        "create --config other.json --bundle B id",
        "create --config config.json --bundle B id",
        "create -f other.json -b B id",
        "create --help",
        "create -h",
        "create -?",
        "create --hel",
        "create --usage",
        "create id --help",
        "create --help=false -b B id",
        "create --pid-file --help -b B id",
        "restore --bundle B id",
        "state create",
    ],
)
@pytest.mark.parametrize("program", BOTH, indirect=True)
def test_the_runtime_opens_the_config_that_we_would_edit(
    program: str, line: str, opened: Callable[[list[str]], set[str]]
) -> None:
    """Where it refuses a line and opens nothing, our reading does not matter."""
    theirs = opened([program, *line.split()])

    call = argv.parse(line.split(), program)
    ours = call.config if "/" in call.config else f"{call.bundle}/{call.config}"
    assert theirs <= ({os.path.normpath(ours)} if call.command in argv.MAKERS else set())
