"""What holds for any config: hypothesis looks for one where it does not."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpushim import edits
from gpushim.bundle import parse
from gpushim.errors import ShimError
from gpushim.json_text import dumps
from gpushim.resolution import Resolution, resolve
from tests import fakenode
from tests.defaults import settings

NAMES = [
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_VERSION",
    "NVIDIA_REQUIRE_CUDA",
    "PATH",
]
VALUES = [
    "",
    "all",
    "none",
    "void",
    "0",
    "1",
    "0,1",
    "0,0",
    "7",
    "ALL",
    "compute",
    "utility,graphics",
    "GPU-x",
]
entries = st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)) | st.text(max_size=20)
KEYS = {"annotations", "hooks", "linux", "mounts", "process", "root", "capabilities", "env", "user"}
unknown: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key.casefold() not in KEYS),
    st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3),
    max_size=3,
)
devices = st.builds(
    lambda path, minor: {"path": path, "type": "c", "major": 195, "minor": minor},
    st.sampled_from(["/dev/nvidia0", "/dev/nvidiactl", "/dev/other"]),
    st.integers(0, 2) | st.just(255),
)
rules = st.fixed_dictionaries(
    {"allow": st.booleans()},
    optional={
        "type": st.sampled_from(["a", "c", "b"]),
        "major": st.sampled_from([195, 237, -1]),
        "minor": st.integers(-1, 3) | st.just(255),
        "access": st.sampled_from(["r", "rw", "rwm", "m"]),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = draw(unknown)
    process: dict[str, Any] = draw(unknown)
    process["env"] = draw(st.lists(entries, max_size=6))
    if draw(st.booleans()):
        process["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    config["process"] = process
    config["linux"] = {
        **draw(unknown),
        "devices": draw(st.lists(devices, max_size=3)),
        "resources": {"devices": draw(st.lists(rules, max_size=4))},
    }
    if draw(st.booleans()):
        config["annotations"] = {"dev.gpushim/injected": "forged", "k": "v"}
    if draw(st.booleans()):
        config["hooks"] = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/x"}]}
    return config


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("seed")
    fakenode.build(directory, "seed")
    values = settings()
    values["gpushim.roots.proc"] = str(directory / "proc")
    values["gpushim.roots.sys"] = str(directory / "sys")
    values["gpushim.roots.dev"] = str(directory)
    values["state"] = str(directory / "state")
    return values


def resolved(config: dict[str, Any], values: dict[str, Any]) -> Resolution | None:
    try:
        return resolve(config, values, "runc", values["state"])
    except ShimError:
        return None


many = hypothesis_settings(max_examples=300)


@many
@given(config=configs())
def test_resolving_changes_nothing_and_every_edit_has_a_reason(config: dict[str, Any], roots: dict[str, Any]) -> None:  # fmt: skip
    before = copy.deepcopy(config)

    resolution = resolved(config, roots)

    assert config == before
    assert all(edit.why and edit.describe() for edit in (resolution.edits if resolution else ()))


@many
@given(config=configs())
def test_applying_twice_is_applying_once(config: dict[str, Any], roots: dict[str, Any]) -> None:
    resolution = resolved(config, roots)
    if resolution is None:
        return

    edits.apply(config, resolution.edits)

    again = resolved(parse(dumps(config).encode(), "x"), roots)
    assert again is not None
    assert [edit.describe() for edit in again.edits] == []


@many
@given(config=configs())
def test_what_is_unknown_survives(config: dict[str, Any], roots: dict[str, Any]) -> None:
    resolution = resolved(config, roots)
    if resolution is None:
        return
    before = copy.deepcopy(config)

    edits.apply(config, resolution.edits)

    for tree, other, ours in (
        (config, before, {"annotations", "hooks", "mounts", "linux", "process"}),
        (config["linux"], before["linux"], {"devices", "resources"}),
        (config["process"], before["process"], {"user"}),
    ):
        assert {k: v for k, v in tree.items() if k not in ours} == {
            k: v for k, v in other.items() if k not in ours
        }
    kept = len(before["linux"]["devices"])
    assert config["linux"]["devices"][:kept] == before["linux"]["devices"]
    kept = len(before["linux"]["resources"]["devices"])
    assert config["linux"]["resources"]["devices"][:kept] == before["linux"]["resources"]["devices"]


@pytest.mark.usefixtures("roots")
@hypothesis_settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(config=configs(), escape=st.booleans())
def test_a_create_on_disk(config: dict[str, Any], escape: bool, shim: "Any") -> None:
    """The launcher's "nothing asked" is an empty plan, and a create that fails leaves the file byte-identical."""
    text = json.dumps(config, ensure_ascii=not escape)
    shim.config.write_text(text)

    done: subprocess.CompletedProcess[str] = shim.create()

    after = shim.config.read_text()
    resolution = resolved(parse(text.encode(), "x"), shim.settings)
    if resolution is None:
        assert (done.returncode, after) == (1, text)
        assert done.stderr.startswith("gpushim: GS")
    elif not resolution.edits:
        assert (done.returncode, after) == (0, text)
    else:
        edits.apply(config, resolution.edits)
        assert (done.returncode, json.loads(after)) == (0, config)
    assert shim.files() == [Path("config.json")]
