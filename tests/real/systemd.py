"""A real systemd as process 1 of namespaces of its own, and containers whose cgroups it manages."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.real.bed import BIN, ENGINES, Bed, Cell, Ran, need

# systemd 258 knows no cgroup v1 any more.
CELLS = [
    *[Cell("host", "runc", "v1"), Cell("host", "runc", "v2"), Cell("sid", "runc", "v2")],
    *[
        Cell("host", "crun", "v1"),
        Cell("host", "crun", "v2"),
        Cell("trixie", "crun", "v2"),
        Cell("sid", "crun", "v2"),
    ],
]

# crun since 1.23 pins its device program for systemd, which attaches that one again at each reload.
PINNING = Cell("sid", "crun", "v2")

_UNITS = {
    **{
        f"{name}.target": ""
        for name in ("basic", "default", "exit", "shutdown", "sysinit", "sockets", "umount")
    },
    # crun speaks to systemd by the bus alone.
    "dbus.socket": "[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": "[Service]\nType=notify\nNotifyAccess=main\nExecStart=/usr/bin/dbus-daemon --system "
    "--address=systemd: --nofork --nopidfile --systemd-activation\n",
}
_number = itertools.count()

# A /dev of this mount namespace's own, with what a runtime needs and the nodes below the directory $0.
OWN_DEV = """
mkdir -p /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
for one in null zero full random urandom tty; do cp -a /dev/$one /run/dev/; done
mkdir /run/dev/pts /run/dev/char /run/dev/shm /run/dev/mqueue
mount --bind /dev/pts /run/dev/pts
cp -a "$0"/. /run/dev/
mount --rbind /run/dev /dev
"""

# Every cgroup below TOP, of whichever version; those of processes that are just ending take a moment.
REMOVE = """mkdir -p /run/gpushim-cgroup2
mount -t cgroup2 none /run/gpushim-cgroup2
for n in $(seq 50); do
    left=$(find /run/gpushim-cgroup2/"$0" /sys/fs/cgroup/*/"$0" -depth -type d 2>/dev/null)
    [ -n "$left" ] || exit 0
    for one in $left; do rmdir "$one" 2>/dev/null; done
    sleep 0.1
done
echo "left: $left"
exit 1"""


class SystemdBed(Bed):
    """A bed whose commands run beside a systemd of their own, and whose containers are its scopes."""

    def __init__(self, cell: Cell, directory: Path) -> None:
        need("nsenter", "systemctl")
        super().__init__(cell, directory)
        units = directory / "units"
        units.mkdir()
        for name, text in _UNITS.items():
            (units / name).write_text(f"[Unit]\nDefaultDependencies=no\n{text}")
        shared = [str(directory)]
        if self.root != "/":
            shared += [str(BIN.parent), sys.base_prefix]
        self.top = f"gpushim-boot-{os.getpid()}-{next(_number)}"
        self.log = (directory / "systemd.log").open("w")
        self.process = subprocess.Popen(
            [str(ENGINES / "boot"), self.root, cell.cgroup, self.top, str(units), *shared],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.pid = self._first_process()
        for unit in ("dbus.socket", "dbus.service"):
            started = self.enter("systemctl", "start", unit)
            assert started.code == 0, started.err + Path(self.log.name).read_text()

    def _first_process(self) -> int:
        """Process 1 as this host numbers it, once it answers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for _ in range(200):
            time.sleep(0.05)
            try:
                self.pid = int(children.read_text())
            except (ValueError, OSError):
                continue
            if self.enter("systemctl", "is-active", "default.target").code == 0:
                return self.pid
        self.stop()
        raise AssertionError(Path(self.log.name).read_text())

    def stop(self) -> None:
        """End systemd and everything below it, whatever state it is in."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        subprocess.run(["unshare", "-m", "sh", "-c", REMOVE, self.top], check=True)

    def enter(self, *argv: str, env: dict[str, str] | None = None) -> Ran:
        command = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-C", "--", *argv]
        # Files, not pipes: the container that a create leaves behind would hold them open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                command,
                env={**os.environ, **(env or {})},
                input="",
                stdout=out,
                stderr=err,
                text=True,
                timeout=60,
            )
            out.seek(0)
            err.seek(0)
            return Ran(done.returncode, out.read(), err.read())

    def own_dev(self, nodes: Path) -> None:
        """From here on the nodes below *nodes* are in the host's /dev, as the commands of this bed see it."""
        done = self.enter("sh", "-ec", OWN_DEV, str(nodes))
        assert done.code == 0, done.err

    def start(self, bundle: Path, program: str = "", *, env: dict[str, str] | None = None) -> "Scope":
        """The container of *bundle* by *program*, running until it is killed; AssertionError if it does not."""
        config = json.loads((bundle / "config.json").read_text())
        name = f"t{os.getpid()}-{next(_number)}"
        items = config["process"]["args"][1:]
        config["process"]["args"] = ["/opens", "wait"]
        config["linux"]["cgroupsPath"] = f"system.slice:gpushim:{name}"
        (bundle / "config.json").write_text(json.dumps(config))
        scope = Scope(self, name, items)
        # Nobody waits for it: the engine's own way is create and start too.
        for step in (["create", "--bundle", str(bundle)], ["start"]):
            ran = scope.runtime(*step, program=program, env=env)
            assert ran.code == 0, ran.err
        return scope


class Scope:
    """A running container of a systemd bed."""

    def __init__(self, bed: SystemdBed, name: str, items: list[str]) -> None:
        self.bed = bed
        self.name = name
        self.unit = f"gpushim-{name}.scope"
        self.items = items

    def runtime(self, command: str, *args: str, program: str = "", env: dict[str, str] | None = None) -> Ran:
        """*command* of the low-level runtime, or of *program*, on this container."""
        root = str(self.bed.directory / "run")
        argv = [program or self.bed.runtime, "--systemd-cgroup", "--root", root, command]
        # An exec has its command line behind the name.
        behind = [self.name, *args] if command == "exec" else [*args, self.name]
        return self.bed.enter(*argv, *behind, env=env)

    def opens(self) -> Ran:
        """What a process in it can open now."""
        ran = self.runtime("exec", "/opens", *self.items)
        assert ran.code == 0, ran.err
        return ran

    def systemctl(self, *args: str) -> None:
        ran = self.bed.enter("systemctl", *args)
        assert ran.code == 0, ran.err

    def property(self, name: str) -> str:
        return self.bed.enter("systemctl", "show", "--property", name, "--value", self.unit).out

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.runtime("state").out)
        return found

    def delete(self) -> None:
        self.runtime("delete", "--force")
