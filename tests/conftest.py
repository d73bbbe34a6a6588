"""What tests of several modules share: the installed shim in front of a runtime that only says that it ran."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import fakenode
from tests.defaults import settings

# Machines differ in speed, and what is tested here is never it.
hypothesis.settings.register_profile(
    "any-speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# `make fuzz` asks for more examples of what reads other people's bytes.
hypothesis.settings.register_profile(
    "fuzz", hypothesis.settings.get_profile("any-speed"), max_examples=int(os.environ.get("FUZZ", "100"))
)
hypothesis.settings.load_profile("fuzz" if "FUZZ" in os.environ else "any-speed")

BIN = Path(sys.executable).parent


class Shim:
    """The installed gpushim-runtime on a simulated node, its low-level runtime a script that prints its arguments."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory
        self.bundle = directory / "bundle"
        self.bundle.mkdir()
        self.config = self.bundle / "config.json"
        self.runtime = directory / "runc"
        self.runtime.write_text('#!/bin/sh\necho "ran $*"\n')
        self.runtime.chmod(0o755)
        self.root = directory / "node"
        fakenode.build(self.root, node)
        self.toml = self.root / "config.toml"
        self.add(f'[nvidia-container-runtime]\nruntimes = ["{self.runtime}"]')
        self.state = directory / "state"
        self.env = {
            "PATH": os.environ["PATH"],
            "GPUSHIM_CONFIG": str(self.toml),
            "GPUSHIM_STATE": str(self.state),
        }

    def add(self, text: str) -> None:
        """More settings at the end of config.toml."""
        with self.toml.open("a") as file:
            file.write(f"\n{text}\n")

    @property
    def settings(self) -> dict[str, Any]:
        """The values under which `resolve` sees the same node."""
        values = settings()
        for root, where in (("proc", "proc"), ("sys", "sys"), ("dev", "."), ("driver", "driver")):
            values[f"gpushim.roots.{root}"] = str(self.root / where)
        values["state"] = str(self.state)
        return values

    def create(self, *options: str, command: str = "create") -> "subprocess.CompletedProcess[str]":
        argv = [str(BIN / "gpushim-runtime"), *options, command, "--bundle", str(self.bundle), "id"]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=60)

    def ctl(self, *args: str) -> "subprocess.CompletedProcess[str]":
        """The admin command on the same node."""
        env = {**self.env, "COLUMNS": "400"}
        return subprocess.run(
            [str(BIN / "gpushim"), *args], env=env, capture_output=True, text=True, timeout=60
        )

    def files(self) -> list[Path]:
        """Everything in the bundle."""
        return sorted(path.relative_to(self.bundle) for path in self.bundle.rglob("*"))


@pytest.fixture
def shim(tmp_path: Path, request: pytest.FixtureRequest) -> Shim:
    """A Shim on the seed's node, or the one that the test names by `@pytest.mark.node("…")`."""
    marker = request.node.get_closest_marker("node")
    return Shim(tmp_path, marker.args[0] if marker else "seed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the supported Pythons that this machine does not have: no Debian suite has them all."""
    from tests.test_pythons import AT_HAND, SUPPORTED

    absent = [version for version in SUPPORTED if version not in AT_HAND and version != sys.version_info[:2]]
    if absent:
        names = ", ".join(f"{major}.{minor}" for major, minor in absent)
        terminalreporter.write_line(f"not at hand, so not tested: Python {names}")
