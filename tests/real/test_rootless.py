"""Runtimes that a user without any privilege starts: host nodes bound by a createContainer hook."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.bed import BIN, Bed, Cell, Ran
from tests.real.test_hook import Hooked
from tests.real.test_seed import CONFIG, DEVICES, MONITOR

USER = 1234

# sh -c REACH WHERE... -- COMMAND...: COMMAND where each directory WHERE can be reached by every user, as an installed
# interpreter can; the tests' own may stand below somebody's home.
REACH = """
set -e
mount --make-rprivate /
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified # crun refuses a mount of both
kept=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$kept"
n=0
for where in "$@"; do
    [ "$where" != -- ] || break
    n=$((n + 1))
    mkdir "$kept/$n"
    mount --rbind "$where" "$kept/$n"
done
for closed in /root /home; do [ ! -d "$closed" ] || mount -t tmpfs -o mode=755 tmpfs "$closed"; done
n=0
while [ "$1" != -- ]; do
    n=$((n + 1))
    [ -d "$1" ] || mkdir -p "$1"
    mount --rbind "$kept/$n" "$1"
    shift
done
shift
exec setpriv --reuid=1234 --regid=1234 --clear-groups "$@"
"""


class Rootless(Hooked):
    """The seed's node, and containers that user 1234 starts."""

    stage = "createContainer"
    command = "create-container"

    def hook(self) -> dict[str, Any]:
        hook = super().hook()
        hook["args"][1:1] = ["--log", str(self.hook_log)]
        return hook

    @property
    def hook_log(self) -> Path:
        return self.bed.directory / "rootless.log"

    @property
    def log(self) -> str:
        return self.hook_log.read_text()

    def run(self, bundle: Path) -> Ran:
        self.hook_log.write_text("")
        for path in (self.hook_log, bundle, bundle / "config.json"):
            os.chown(path, USER, USER)
        state = self.bed.directory / "user-state"
        state.mkdir(exist_ok=True)
        os.chown(state, USER, USER)
        where = [sys.base_prefix, str(BIN.parent), str(self.bed.directory)]
        manager = ["--cgroup-manager=disabled"] if self.bed.cell.runtime == "crun" else []
        argv = [
            self.bed.cell.runtime,
            *manager,
            "--root",
            str(state),
            "run",
            "--bundle",
            str(bundle),
            "rootless",
        ]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", REACH, "sh", *where, "--", *argv],
            env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(state)},
            input="",
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


def of_the_user(config: dict[str, Any]) -> None:
    """As `runc spec --rootless` makes it."""
    mapping = [{"containerID": 0, "hostID": USER, "size": 1}]
    config["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
    config["linux"]["namespaces"].append({"type": "user"})
    config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] != "network"]
    del config["linux"]["resources"]
    config["mounts"] = [
        {**one, "options": [o for o in one.get("options", []) if not o.startswith("gid=")]}
        for one in config["mounts"]
        if one["destination"] not in ("/sys", "/sys/fs/cgroup")
    ]


@pytest.fixture(scope="module", params=["runc", "crun"])
def rootless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rootless:
    bed = Bed(Cell("host", request.param, "v1"), tmp_path_factory.mktemp("rootless"))
    for path in (*bed.directory.parents, bed.directory, *bed.directory.rglob("*")):
        if os.stat(path).st_mode & 0o055 != 0o055 and path.is_dir():
            os.chmod(path, 0o755)
    os.chown(bed.rootfs, USER, USER)
    for path in bed.rootfs.rglob("*"):
        os.chown(path, USER, USER, follow_symlinks=False)
    settings = ["[gpushim.policy]", 'mig-monitor = "allow"', 'mig-config = "allow"']
    return Rootless(bed, bed.directory / "node", *settings)


def test_what_the_host_lets_everybody_open_opens(rootless: Rootless) -> None:
    ran = rootless.run(rootless.bundle(*DEVICES, *MONITOR, change=of_the_user))

    assert (ran.code, ran.err, rootless.log) == (0, "", "")
    opens = rootless.named(ran)
    asked = ("cap2:r", "cap66:r", "cap67:r", "nvidiactl:rw", "nvidia0:rw", "nvidia-uvm:rw")
    assert {item: opens[item] for item in asked} == dict.fromkeys(asked, "ENXIO")
    assert opens["cap1:r"] == "ENOENT"


def test_what_only_the_hosts_root_may_open_is_told(rootless: Rootless) -> None:
    ran = rootless.run(rootless.bundle(*DEVICES, *CONFIG, change=of_the_user))

    assert (ran.code, ran.err) == (0, "")
    assert rootless.named(ran)["cap1:r"] == "EACCES"
    (line,) = rootless.log.splitlines()
    assert line.endswith(
        "rootless: warning: /dev/nvidia-caps/nvidia-cap1: the host's node has mode 0400 and is root's: nobody in a "
        "user namespace can open it"
    )


def test_the_hook_of_another_stage_says_where_it_belongs(rootless: Rootless) -> None:
    bundle = rootless.bundle(*DEVICES, change=of_the_user)
    config = json.loads((bundle / "config.json").read_text())
    config["hooks"] = {"createRuntime": config["hooks"]["createContainer"]}
    config["hooks"]["createRuntime"][0]["args"][-1] = "create-runtime"
    (bundle / "config.json").write_text(json.dumps(config))

    ran = rootless.run(bundle)

    assert ran.code != 0
    assert "gpushim-hook create-container" in rootless.log
