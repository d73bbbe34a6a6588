"""Row 4 of the report's table, and the rest of it, by the hook alone: a plain runtime, a bundle with one hook."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real.bed import BIN, Bed, Ran
from tests.real.test_seed import (
    CONFIG,
    CONFIGURED,
    DEVICES,
    GPU,
    INSTANCES,
    MONITOR,
    MONITORED,
    NOT_CONFIGURED,
    NOT_MONITORED,
    REPORTER,
    Seed,
)

Change = Callable[[dict[str, Any]], None]


class Hooked(Seed):
    """The seed's node, and containers that plain runc or crun starts with the hook in their bundle."""

    stage = "createRuntime"
    command = "create-runtime"
    before = ""  # a command that is run in front of the hook, in a mount namespace of its own

    def hook(self) -> dict[str, Any]:
        options = ["--config", self.env["GPUSHIM_CONFIG"], "--state", self.env["GPUSHIM_STATE"]]
        path = str(BIN / "gpushim-hook")
        args = [path, *options, self.command]
        if self.before:
            script = f'{self.before} && exec "$@"'
            path, args = "/usr/bin/unshare", ["unshare", "--mount", "sh", "-c", script, "sh", *args]
        return {"path": path, "args": args, "env": ["PATH=/usr/bin:/bin"]}

    def bundle(self, *env: str, change: Change = lambda config: None, **more: Any) -> Path:
        def with_hook(config: dict[str, Any]) -> None:
            config["hooks"] = {self.stage: [self.hook()]}
            change(config)

        return super().bundle(*env, change=with_hook, **more)

    def run(self, bundle: Path) -> Ran:
        return self.bed.run(bundle)

    @property
    def log(self) -> str:
        path = Path(self.env["GPUSHIM_STATE"], "hook.log")
        return path.read_text() if path.exists() else ""


@pytest.fixture
def hooked(bed: Bed) -> Hooked:
    return Hooked(bed, bed.directory / f"hooked{len(list(bed.directory.iterdir()))}")


def test_row_4_the_reporters_pod_by_the_hook_alone(hooked: Hooked) -> None:
    assert hooked.opens(*REPORTER, admin=True) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED
    assert hooked.log == ""


def test_both_capabilities(hooked: Hooked) -> None:
    assert hooked.opens(*DEVICES, *MONITOR, *CONFIG, admin=True) == GPU | INSTANCES | MONITORED | CONFIGURED


def test_without_the_monitor_variable(hooked: Hooked) -> None:
    assert hooked.opens(*DEVICES) == GPU | INSTANCES | NOT_MONITORED | NOT_CONFIGURED


def test_privileged(hooked: Hooked) -> None:
    opens = hooked.opens(*REPORTER, privileged=True)

    nodes = dict.fromkeys(GPU | INSTANCES | MONITORED, "ENXIO")
    absent = {"cap1:r": "ENOENT", "cap1:w": "ENOENT"}
    assert opens == nodes | absent | {"caps:1:r": "ENXIO", "caps:500:r": "ENXIO"}
