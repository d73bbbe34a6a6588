"""gpushim.bundle: config.json is read whole and replaced at once, or left as it was."""

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpushim import bundle
from gpushim.errors import InvalidBundle

CONFIG = {"ociVersion": "1.0.2", "process": {"env": ["A=1"]}, "future": {"n": 2**64 - 1}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_bundle_comes_back_as_it_was(directory: Path) -> None:
    found = bundle.open_bundle(str(directory))

    bundle.write(found)

    assert json.loads((directory / "config.json").read_text()) == CONFIG


def test_mode_and_owner_stay(directory: Path) -> None:
    os.chmod(directory / "config.json", 0o640)
    owner = (os.getuid(), os.getgid())
    if os.getuid() == 0:
        owner = (1234, 2345)
        os.chown(directory / "config.json", *owner)

    bundle.write(bundle.open_bundle(str(directory)))

    after = (directory / "config.json").stat()
    assert (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid) == (0o640, *owner)
    assert os.listdir(directory) == ["config.json"]


def test_a_link_stays_a_link_and_its_file_is_replaced(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    (directory / "config.json").rename(elsewhere)
    (directory / "config.json").symlink_to(elsewhere)
    found = bundle.open_bundle(str(directory))
    found.config["new"] = True

    bundle.write(found)

    assert (directory / "config.json").is_symlink()
    assert json.loads(elsewhere.read_text())["new"] is True


def test_another_name_than_config_json(directory: Path) -> None:
    (directory / "config.json").rename(directory / "other.json")

    assert bundle.open_bundle(str(directory), "other.json").config == CONFIG
    assert bundle.open_bundle("/none", str(directory / "other.json")).config == CONFIG


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "GS0103: {path}: Expecting property name enclosed in double quotes", id="truncated"),
        pytest.param("", "GS0103: {path}: Expecting value", id="empty"),
        pytest.param("\x00\x01\x02", "GS0103: {path}: Expecting value", id="binary"),
        pytest.param("[]", "GS0105: {path}: is not a JSON object", id="not-an-object"),
        pytest.param('{"process":[]}', "GS0107: {path}: process: is not an object", id="process-is-a-list"),
        pytest.param('{"linux":{"devices":{}}}', "GS0107: {path}: linux.devices: is not an array", id="devices-is-an-object"),
        pytest.param('{"mounts":[1]}', "GS0108: {path}: mounts[0]: is not an object", id="mount-is-a-number"),
        pytest.param('{"process":{"env":["A=1",2]}}', "GS0109: {path}: process.env[1]: is not a string", id="env-is-a-number"),
        pytest.param('{"linux":{"devices":[{"path":[]}]}}', "GS0112: {path}: linux.devices[0].path: is not a string", id="path-is-a-list"),
        pytest.param('{"linux":{"resources":{"devices":[{"major":{}}]}}}', "GS0112: {path}: linux.resources.devices[0].major: is not an integer", id="major-is-an-object"),
        pytest.param('{"mounts":[{"options":1}]}', "GS0112: {path}: mounts[0].options: is not an array", id="options-is-a-number"),
        pytest.param('{"hooks":{"prestart":[{"path":[]}]}}', "GS0112: {path}: hooks.prestart[0].path: is not a string", id="hook-path-is-a-list"),
        pytest.param('{"process":{"user":{"additionalGids":[[]]}}}', "GS0109: {path}: process.user.additionalGids[0]: is not an integer", id="gid-is-a-list"),
        pytest.param('{"process":{"user":{"uid":"root"}}}', "GS0107: {path}: process.user.uid: is not an integer", id="uid-is-a-string"),
        pytest.param('{"process":{"env":[],"env":[]}}', "GS0103: {path}: the key 'env' occurs twice in one object", id="key-twice"),
        pytest.param('{"Process":{}}', "GS0110: {path}: Process: runc reads this as 'process' and crun does not\nhint: write process", id="case-variant"),
        pytest.param('{"proce\u017f\u017f":{}}', "GS0110: {path}: proce\u017f\u017f: runc reads this as 'process' and crun does not\nhint: write process", id="long-s-is-s-to-go"),
        pytest.param('{"process":{"ENV":[]}}', "GS0110: {path}: process.ENV: runc reads this as 'env' and crun does not\nhint: write process.env", id="case-variant-below"),
        pytest.param('{"hooks":{"Prestart":[]}}', "GS0110: {path}: hooks.Prestart: runc reads this as 'prestart' and crun does not\nhint: write hooks.prestart", id="case-variant-of-a-hook"),
    ],
)  # fmt: skip
def test_a_config_that_is_none_is_named(directory: Path, text: str, message: str) -> None:
    path = directory / "config.json"
    path.write_text(text)

    with pytest.raises(InvalidBundle) as raised:
        bundle.open_bundle(str(directory))

    assert str(raised.value).startswith(message.format(path=path))


def test_deep_nesting_is_an_error_and_not_a_crash(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text('{"a":' * 200_000 + "1" + "}" * 200_000)

    with pytest.raises(InvalidBundle) as raised:
        bundle.open_bundle(str(directory))

    assert str(raised.value) == f"GS0104: {path}: is nested too deeply"


def test_a_huge_file_is_refused(directory: Path) -> None:
    path = directory / "config.json"
    os.truncate(path, bundle.LIMIT + 1)

    with pytest.raises(InvalidBundle) as raised:
        bundle.open_bundle(str(directory))

    assert str(raised.value) == f"GS0102: {path}: is larger than 32 MiB"


def test_a_fifo_does_not_hold_us(directory: Path) -> None:
    path = directory / "config.json"
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(InvalidBundle) as raised:
        bundle.open_bundle(str(directory))

    assert str(raised.value) == f"GS0101: {path}: is not a regular file"


def test_fifty_thousand_variables_are_fine(directory: Path) -> None:
    entries = [f"VARIABLE_{n}={'x' * 30}" for n in range(50_000)]
    (directory / "config.json").write_text(json.dumps({"process": {"env": entries}}))

    found = bundle.open_bundle(str(directory))
    bundle.write(found)

    assert json.loads((directory / "config.json").read_text())["process"]["env"] == entries


def test_a_number_out_of_range_leaves_the_file(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text('{"n":1E400}')
    found = bundle.open_bundle(str(directory))

    with pytest.raises(InvalidBundle) as raised:
        bundle.write(found)

    assert str(raised.value) == f"GS0106: {path}: a number is out of range"
    assert path.read_text() == '{"n":1E400}'


def test_a_write_that_fails_half_way_leaves_the_file_and_nothing_else(directory: Path) -> None:
    before = (directory / "config.json").read_bytes()
    found = bundle.open_bundle(str(directory))
    found.config["much"] = "x" * 100_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    program = f"""
import resource, signal
from gpushim import bundle
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
found = bundle.open_bundle({str(directory)!r})
found.config["much"] = "x" * 100_000
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {hard}))
try:
    bundle.write(found)
except OSError as problem:
    print(problem.strerror)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "File too large\n"
    assert (directory / "config.json").read_bytes() == before
    assert os.listdir(directory) == ["config.json"]
    assert soft == resource.getrlimit(resource.RLIMIT_FSIZE)[0]


def test_a_leftover_of_a_killed_process_with_our_pid_is_no_obstacle(directory: Path) -> None:
    found = bundle.open_bundle(str(directory))
    (directory / f"config.json.{os.getpid()}.tmp").write_text("half")

    bundle.write(found)

    assert os.listdir(directory) == ["config.json"]


def test_what_can_be_read_but_not_written_is_too_deep(directory: Path) -> None:
    """The reader and the writer of JSON have limits of their own: neither may end in a traceback."""
    for depth in range(200, 1100, 20):
        (directory / "config.json").write_text('{"a":' * depth + "1" + "}" * depth)
        try:
            bundle.write(bundle.open_bundle(str(directory)))
        except InvalidBundle as problem:
            assert problem.id == "GS0104"
