"""What a runtime may hand a hook on standard input."""

import json
import os
from pathlib import Path

import pytest

from gpushim.errors import InvalidState
from gpushim_hooks.state import read_state

GOOD = {"ociVersion": "1.0.2", "id": "a", "status": "creating", "pid": 77, "bundle": "/b"}


def descriptor(directory: Path, text: str) -> int:
    path = directory / "state"
    path.write_text(text)
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, ("a", 77, "/b"), id="runc"),
        pytest.param({"root": "/r", "ociVersion": "1.0"}, ("a", 77, "/b"), id="crun"),
        pytest.param({"bundle": None, "bundlePath": "/b"}, ("a", 77, "/b"), id="runc-before-1.0"),
        pytest.param({"annotations": {"x": "y" * 100_000}}, ("a", 77, "/b"), id="long-annotations"),
    ],
)
def test_a_state_is_read_leniently(
    tmp_path: Path, change: dict[str, object], expected: tuple[str, int, str]
) -> None:
    tree = {key: value for key, value in (GOOD | change).items() if value is not None}

    found = read_state(descriptor(tmp_path, json.dumps(tree)))

    assert (found.id, found.pid, found.bundle) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "GS0750: standard input: is empty", id="nothing"),
        pytest.param(" \n", "GS0750: standard input: is empty", id="blank"),
        pytest.param("{", "GS0751: standard input: is no OCI state: ", id="cut"),
        pytest.param("[" * 100_000, "GS0751: standard input: is no OCI state: ", id="too-deep"),
        pytest.param("[]", "GS0752: standard input: is no OCI state: not a JSON object", id="a-list"),
        pytest.param(json.dumps(GOOD | {"bundle": "b"}), "GS0753: standard input: bundle: is not an absolute path: 'b'", id="relative"),
        pytest.param(json.dumps(GOOD | {"bundle": 7}), "GS0753: standard input: bundle: is not an absolute path: 7", id="a-number"),
        *[
            pytest.param(json.dumps(GOOD | {"pid": pid}), f"GS0754: standard input: pid: is no process of a container: {pid!r}", id=f"pid-{pid}")
            for pid in (0, 1, -1, True, None, "77", 1 << 40, 1.5)
        ],
    ],
)  # fmt: skip
def test_what_is_no_state_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidState) as caught:
        read_state(descriptor(tmp_path, text))

    assert str(caught.value).startswith(message)


def test_other_stages_need_no_process(tmp_path: Path) -> None:
    assert read_state(descriptor(tmp_path, json.dumps(GOOD | {"pid": 0})), living=False).pid == 0
