"""Creates that are killed, and many at once, under a real runtime's feet."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import BIN, Shim
from tests.test_main import SEED, pod

ARGV = [str(BIN / "gpushim-runtime"), "create", "--bundle"]


def forget(shim: Shim) -> None:
    """An empty state directory. What a killed create had started may still be writing there."""
    while shim.state.exists():
        shutil.rmtree(shim.state, ignore_errors=True)


def make(shim: Shim, count: int) -> list[Path]:
    bundles = [shim.directory / f"many{n}" for n in range(count)]
    for bundle in bundles:
        bundle.mkdir()
        (bundle / "config.json").write_text(pod(*SEED))
    return bundles


def test_two_hundred_creates_at_once_from_an_empty_state(shim: Shim) -> None:
    bundles = make(shim, 200)

    with ThreadPoolExecutor(50) as pool:
        codes = list(
            pool.map(
                lambda bundle: (
                    subprocess.run([*ARGV, str(bundle), "id"], env=shim.env, capture_output=True).returncode
                ),
                bundles,
            )
        )

    assert set(codes) == {0}
    texts = {(bundle / "config.json").read_text() for bundle in bundles}
    assert len(texts) == 1
    assert len(json.loads(texts.pop())["linux"]["devices"]) == 19
    assert {path.name for bundle in bundles for path in bundle.iterdir()} == {"config.json"}


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_a_create_that_is_killed_leaves_the_old_file_or_the_new(shim: Shim, state: str) -> None:
    shim.config.write_text(pod(*SEED))
    shim.create()
    started = time.monotonic()
    if state == "cold":
        forget(shim)
    shim.create()
    takes = time.monotonic() - started
    old, new = pod(*SEED), shim.config.read_text()
    seen = {old: 0, new: 0}
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)

    for bundle in make(shim, 100):
        if state == "cold":
            forget(shim)
        process = subprocess.Popen([*ARGV, str(bundle), "id"], env=shim.env, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 1.3 * takes))
        process.send_signal(signal.SIGKILL)
        process.wait()
        text = (bundle / "config.json").read_text()
        assert text in seen, f"torn with seed {seed}"
        seen[text] += 1

    assert seen[old] and seen[new], "the times of the kills hit one side only"
    # And whatever was killed while it wrote state is no obstacle to the next.
    shim.config.write_text(old)
    assert shim.create().returncode == 0
    assert shim.config.read_text() == new
    assert os.path.exists(shim.state)
