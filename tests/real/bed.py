"""Real runtimes on real cgroups: a cell is one runtime of one Debian suite on one cgroup version."""

import copy
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
ENGINES = HERE.parent / "engines"
BIN = Path(sys.executable).parent
ADMIN = ("CAP_SYS_ADMIN",)

_number = itertools.count()


def need(*programs: str) -> None:
    """Without root and *programs* the test is skipped, or in CI fails."""
    lacks = [program for program in programs if shutil.which(program) is None]
    if os.geteuid() != 0:
        lacks.insert(0, "root")
    if lacks and os.environ.get("CI"):
        pytest.fail(f"missing: {', '.join(lacks)}")
    if lacks:
        pytest.skip(f"missing: {', '.join(lacks)}")


class Cell(NamedTuple):
    """Where a test runs."""

    suite: str  # host, or a Debian suite
    runtime: str  # runc, crun
    cgroup: str  # v1, v2

    def __str__(self) -> str:
        return "-".join(self)


CELLS = [Cell(*one) for one in itertools.product(("host", "sid"), ("runc", "crun"), ("v1", "v2"))]


def lacking(cell: Cell) -> str:
    """Why *cell* cannot be on this machine, whatever is installed; empty where it can."""
    v1 = Path("/sys/fs/cgroup/devices/devices.list").exists() or Path("/sys/fs/cgroup/devices/tasks").exists()
    if cell.cgroup == "v1" and not v1:
        return "this machine mounts no devices cgroup of v1"
    return ""


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def opens(self) -> dict[str, str]:
        """Each item that the prober was asked, and its answer."""
        return dict(line.rsplit(" ", 1) for line in self.out.splitlines())


class Bed:
    """Makes bundles and runs them; *directory* holds the root file system that they share."""

    def __init__(self, cell: Cell, directory: Path) -> None:
        need("runc", cell.runtime, "unshare", "gcc")
        self.cell = cell
        self.directory = directory
        self.rootfs = directory / "rootfs"
        for name in ("dev", "proc", "sys", "tmp"):
            (self.rootfs / name).mkdir(parents=True)
        subprocess.run(
            ["gcc", "-O1", "-static", "-o", str(self.rootfs / "opens"), str(HERE / "opens.c")], check=True
        )
        self.root = root_of(cell.suite)
        self.runtime = self._runtime()
        self.spec = self._spec()

    def _runtime(self) -> str:
        path = (
            f"/usr/sbin/{self.cell.runtime}"
            if self.cell.runtime == "runc"
            else f"/usr/bin/{self.cell.runtime}"
        )
        if self.cell != Cell("host", "crun", "v2"):
            return path
        library = self.directory / "nomemlock.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", str(library), str(HERE / "nomemlock.c"), "-ldl"], check=True
        )
        wrapper = self.directory / "crun"
        wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {path} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)

    def _spec(self) -> dict[str, Any]:
        where = self.directory / "spec"
        where.mkdir()
        subprocess.run(["runc", "spec"], cwd=where, check=True)
        spec: dict[str, Any] = json.loads((where / "config.json").read_text())
        spec["process"]["terminal"] = False
        spec["root"] = {"path": str(self.rootfs), "readonly": False}
        spec["linux"]["resources"] = {"devices": spec["linux"]["resources"]["devices"]}
        spec["process"]["capabilities"].pop("ambient", None)
        # As engines give them, and the prober needs: to make nodes of numbers that the container has none of, and
        # to be stopped by the cgroup and not by a node's mode.
        _add_capabilities(spec, "CAP_MKNOD", "CAP_DAC_OVERRIDE")
        return spec

    def bundle(
        self,
        items: list[str],
        env: tuple[str, ...] = (),
        *,
        capabilities: tuple[str, ...] = (),
        privileged: bool = False,
        change: "Callable[[dict[str, Any]], None]" = lambda config: None,
    ) -> Path:
        """A bundle whose process asks about *items*; *change* has the last word on its config."""
        config = copy.deepcopy(self.spec)
        config["process"]["args"] = ["/opens", *items]
        config["process"]["env"] += env
        _add_capabilities(config, *capabilities)
        if privileged:
            config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
            _add_capabilities(config, *ADMIN)
        change(config)
        path = self.directory / f"bundle{next(_number)}"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        return path

    def enter(self, *argv: str, env: dict[str, str] | None = None) -> Ran:
        """*argv* in the cell."""
        directories = [str(self.directory)]
        if self.root != "/":
            # The launcher and its interpreter come along, at the paths they have here.
            directories += [str(BIN.parent), sys.base_prefix]
        command = [str(ENGINES / "enter"), self.root, self.cell.cgroup, *directories, "--", *argv]
        # Standard input is a pipe: crun 1.8 gives what it finds there to the container's root, /dev/null too.
        done = subprocess.run(
            command, env={**os.environ, **(env or {})}, input="", capture_output=True, text=True, timeout=120
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def run(self, bundle: Path, program: str = "", *, env: dict[str, str] | None = None) -> Ran:
        """The container of *bundle* by *program*, the cell's plain runtime where it is empty."""
        name, runtime = self._container(program)
        return self.enter(*runtime, "run", "--bundle", str(bundle), name, env=env)

    def create_and_start(self, bundle: Path, program: str = "", *, env: dict[str, str] | None = None) -> Ran:
        """As run, in the steps that engines take."""
        name, runtime = self._container(program)
        return self.enter("sh", "-c", STEPS, str(bundle), name, *runtime, env=env)

    def _container(self, program: str) -> tuple[str, list[str]]:
        name = f"gpushim-test-{os.getpid()}-{next(_number)}"
        # With the rest of the bed: /run is the machine's own in a cell of the host.
        return name, [program or self.runtime, "--root", str(self.directory / "run")]


# sh -c STEPS BUNDLE NAME RUNTIME...
STEPS = """set -e
name=$1
shift
"$@" create --bundle "$0" "$name"
"$@" start "$name"
until "$@" state "$name" | grep -q stopped; do sleep 0.01; done
"$@" delete "$name"
"""


# Of Debian 13 on, docker.io is the daemon alone.
PACKAGES = (
    *("runc", "crun", "containerd", "docker.io", "docker-cli", "podman", "conmon", "iptables", "procps"),
    *("systemd", "dbus-daemon", "dbus-system-bus-common"),
)


def root_of(suite: str) -> str:
    """The root directory of the Debian *suite*, made where it is missing; / is `host`."""
    if suite == "host":
        return "/"
    need("debootstrap")
    command = [str(ENGINES / "root"), suite, *PACKAGES]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _add_capabilities(config: dict[str, Any], *names: str) -> None:
    for kind in ("bounding", "effective", "permitted"):
        known = config["process"]["capabilities"][kind]
        known += [name for name in names if name not in known]
