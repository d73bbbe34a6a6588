"""Docker and podman, private and without a network, in the host or in a Debian root."""

import copy
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real import image
from tests.real.bed import BIN, ENGINES, HERE, Ran

NAME = "localhost/gpushim/test:1"


def _enter(root: str, directory: Path) -> list[str]:
    shared = [str(directory)] + ([] if root == "/" else [str(BIN.parent), sys.base_prefix])
    return [str(ENGINES / "enter"), root, "v1", *shared, "--"]


def _archive(directory: Path) -> Path:
    prober = directory / "prober"
    subprocess.run(["gcc", "-O1", "-static", "-o", str(prober), str(HERE / "opens.c")], check=True)
    archive = directory / "image.tar"
    image.root_file_system(archive, Path("/bin/busybox"), prober)
    return archive


def _ran(argv: list[str], env: dict[str, str]) -> Ran:
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)


class Engine:
    """What both have: a command line that runs a container."""

    def __init__(self, root: str, directory: Path) -> None:
        self.directory = directory
        self._enter = _enter(root, directory)

    def run_here(self, *argv: str, env: dict[str, str]) -> Ran:
        """*argv* where the engine runs."""
        return _ran([*self._enter, *argv], env)

    def version(self, program: str) -> tuple[int, int]:
        text = _ran([*self._enter, program, "--version"], {}).out
        found = re.search(r"(\d+)\.(\d+)", text)
        assert found, text
        return int(found[1]), int(found[2])


class Docker(Engine):
    """A dockerd of its own; *runtimes* are {name: path}, *path* a directory in front of its PATH."""

    def __init__(self, root: str, directory: Path, runtimes: dict[str, str], path: str) -> None:
        super().__init__(root, directory)
        self._socket = f"unix://{directory}/d.sock"
        self._log = (directory / "dockerd.log").open("w")
        options = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "pid"]
        argv = [
            *self._enter,
            "dockerd",
            *[f"{directory}/{one}" if not one.startswith("-") else one for one in options],
        ]
        argv += ["-H", self._socket, "--iptables=false", "--ip6tables=false", "--bridge=none", "-s", "vfs"]
        argv += [f"--add-runtime={name}={path}" for name, path in runtimes.items()]
        self._process = subprocess.Popen(
            argv,
            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ready(self) -> None:
        for _ in range(200):
            if self.docker("version").code == 0:
                break
            time.sleep(0.1)
        done = self.docker("import", str(_archive(self.directory)), NAME)
        assert done.code == 0, done.err + (self.directory / "dockerd.log").read_text()[-3000:]

    def docker(self, *argv: str) -> Ran:
        return _ran([*self._enter, "docker", "-H", self._socket, *argv], {})

    def run(self, runtime: str, env: tuple[str, ...], *argv: str, options: tuple[str, ...] = ()) -> Ran:
        """A container of *argv* under *runtime*."""
        variables = [f"--env={one}" for one in env]
        return self.docker(
            "run", "--rm", "--network=host", f"--runtime={runtime}", *variables, *options, NAME, *argv
        )

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=60)
        self._log.close()


class Podman(Engine):
    """podman with storage of its own."""

    def __init__(self, root: str, directory: Path) -> None:
        super().__init__(root, directory)
        self._options: tuple[str, ...] = ()
        done = self.podman("", "import", str(_archive(directory)), NAME)
        assert done.code == 0, done.err

    def with_options(self, *options: str) -> "Podman":
        """The same podman with more global options."""
        out = copy.copy(self)
        out._options = options
        return out

    def command(self, runtime: str, *argv: str) -> list[str]:
        where = [
            f"--root={self.directory}/root",
            f"--runroot={self.directory}/run",
            f"--tmpdir={self.directory}/tmp",
        ]
        how = ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"]
        choice = [f"--runtime={runtime}"] if runtime else []
        return ["podman", *where, *how, *self._options, *choice, *argv]

    def podman(self, runtime: str, *argv: str) -> Ran:
        return self.run_here(*self.command(runtime, *argv), env={"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"})

    def run(
        self,
        runtime: str,
        env: tuple[str, ...],
        *argv: str,
        options: tuple[str, ...] = (),
        image_name: str = NAME,
    ) -> Ran:
        """A container of *argv* under the *runtime* at a path."""
        # podman asks for higher limits than a machine without CAP_SYS_RESOURCE can give.
        limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        variables = [f"--env={one}" for one in env]
        return self.podman(
            runtime, "run", "--rm", "--network=host", *limits, *variables, *options, image_name, *argv
        )


@contextmanager
def docker(root: str, directory: Path, runtimes: dict[str, str], path: str = "") -> Iterator[Docker]:
    """A dockerd in *root*, stopped at the end."""
    running = Docker(root, directory, runtimes, path)
    try:
        running.ready()
        yield running
    finally:
        running.stop()
