"""`python -m tests.real.capture`: make the captured bundles of oci-fixtures/good again.

Each is the config.json that an engine gave its low-level runtime, with ids and paths of the machine taken out. Engines
write variables and mounts in an order that changes from run to run: a case that differs in no more than that stays.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.bed import HERE, root_of
from tests.real.conftest import recorder
from tests.real.cri import containerd
from tests.real.engines import Podman, docker

GOOD = HERE.parent.parent / "oci-fixtures/good"
SEED = (
    "MPS_ROOT=/run/nvidia/mps",
    "MIG_STRATEGY=mixed",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_MIG_MONITOR_DEVICES=all",
)
ONE = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")


def neutral(text: str, directory: Path) -> str:
    """*text* without what is this machine's or this run's."""
    text = text.replace(str(directory), "/engine")
    ids = dict.fromkeys(re.findall(r"\b[0-9a-f]{64}\b", text))
    for number, one in enumerate(ids):
        text = text.replace(one, f"{number:064x}").replace(one[:12], f"{number:012x}")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "00000000-0000-0000-0000-000000000000", text)
    text = re.sub(rf'(HOSTNAME=|"hostname":"){re.escape(platform.node())}"', r'\1node"', text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "2026-01-01T00:00:00Z", text)
    return re.sub(r"/proc/\d+/", "/proc/1/", text)


def in_one_order(text: str) -> dict[str, Any]:
    """The config *text* with its variables and mounts in one order."""
    config: dict[str, Any] = json.loads(text)
    config["process"]["env"].sort()
    config["mounts"].sort(key=lambda mount: mount["destination"])
    return config


def keep(case: str, kept: Path, directory: Path) -> None:
    text, path = neutral(kept.read_text(), directory), GOOD / case / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    told = "as it was"
    if not path.exists() or in_one_order(path.read_text()) != in_one_order(text):
        path.write_text(text)
        told = "new"
    (GOOD / case / "node").write_text("seed\n")
    print(case, json.loads(text)["ociVersion"], told)


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="c") as directory:
        yield Path(directory)
        wait_for_cleaners(directory)


def wait_for_cleaners(directory: str) -> None:
    """`podman run` ends before the cleaner that its conmon starts, which still writes below *directory*."""
    for _ in range(300):
        users = [one for one in Path("/proc").glob("[0-9]*/cmdline") if directory in command_line(one)]
        if not users:
            return
        time.sleep(0.1)
    raise AssertionError(f"{directory}: still used by {[command_line(one) for one in users]}")


def command_line(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # ended meanwhile


def pods(suite: str, suffix: str) -> None:
    with place() as directory:
        runtime, kept = recorder(directory / "runc", "runc"), directory / "runc.json"
        with containerd(directory, root_of(suite), {"recorder": runtime}) as engine:
            print("containerd", engine.version)
            with engine.pod("recorder") as pod:
                pod.start(SEED, capabilities=("SYS_ADMIN",))
                keep(f"containerd{suffix}-seed-pod", kept, directory)
                if suffix:
                    return
                pod.start(())
                keep("containerd-plain-pod", kept, directory)
            with engine.pod("recorder", privileged=True) as pod:
                pod.start(SEED, privileged=True)
                keep("containerd-privileged-pod", kept, directory)


def containers(suite: str, suffix: str) -> None:
    root = root_of(suite)
    with place() as directory:
        runtime, kept = recorder(directory / "runc", "runc"), directory / "runc.json"
        with docker(root, directory, {"recorder": runtime}) as engine:
            print("docker", engine.version("dockerd"))
            engine.run("recorder", ONE, "/bin/true")
            keep(f"docker{suffix}-one-gpu", kept, directory)
            if not suffix:
                engine.run("recorder", ONE, "/bin/true", options=("--read-only", "--user=1000:1000"))
                keep("docker-read-only-user", kept, directory)
    for runtime_name in ("runc", "crun"):
        with place() as directory:
            runtime = recorder(directory / runtime_name, runtime_name)
            kept = directory / f"{runtime_name}.json"
            podman = Podman(root, directory)
            print("podman", podman.version("podman"))
            podman.run(runtime, ONE, "/bin/true")
            keep(f"podman{suffix}-{runtime_name}-one-gpu", kept, directory)
            if not suffix and runtime_name == "crun":
                podman.run(runtime, (), "/bin/true")
                keep("podman-plain", kept, directory)


def specs() -> None:
    for runtime in ("runc", "crun"):
        with place() as directory:
            subprocess.run([runtime, "spec"], cwd=directory, check=True)
            tree = json.loads((directory / "config.json").read_text())
            tree["process"]["env"] += SEED
            tree["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
            (directory / "config.json").write_text(json.dumps(tree))
            keep(f"{runtime}-spec", directory / "config.json", directory)


if __name__ == "__main__":
    for suite, suffix in (("host", ""), ("trixie", "-debian13"), ("sid", "-sid")):
        pods(suite, suffix)
        containers(suite, suffix)
    specs()
    sys.exit(0)
