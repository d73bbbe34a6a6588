"""`python -m tests.real.capture`: make the captured bundles of oci-fixtures/good again.

Each is the config.json that an engine gave its low-level runtime, with ids and paths of the machine taken out.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.bed import HERE, root_of
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


def recorder(directory: Path, runtime: str) -> tuple[str, Path]:
    """A runtime that keeps the config.json of its last create, and where."""
    path, kept = directory / f"record-{runtime}", directory / "last.json"
    copy = (
        f'[ "${{!i}}" = --bundle ] || [ "${{!i}}" = -b ] && j=$((i + 1)) && cp "${{!j}}/config.json" {kept}'
    )
    path.write_text(f'#!/bin/bash\nfor ((i = 1; i <= $#; i++)); do {copy}; done\nexec {runtime} "$@"\n')
    path.chmod(0o755)
    return str(path), kept


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


def keep(case: str, kept: Path, directory: Path) -> None:
    (GOOD / case).mkdir(parents=True, exist_ok=True)
    (GOOD / case / "config.json").write_text(neutral(kept.read_text(), directory))
    (GOOD / case / "node").write_text("seed\n")
    print(case, json.loads(kept.read_text())["ociVersion"])


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="c") as directory:
        yield Path(directory)


def pods(suite: str, suffix: str) -> None:
    with place() as directory:
        runtime, kept = recorder(directory, "runc")
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
        runtime, kept = recorder(directory, "runc")
        with docker(root, directory, {"recorder": runtime}) as engine:
            print("docker", engine.version("dockerd"))
            engine.run("recorder", ONE, "/bin/true")
            keep(f"docker{suffix}-one-gpu", kept, directory)
            if not suffix:
                engine.run("recorder", ONE, "/bin/true", options=("--read-only", "--user=1000:1000"))
                keep("docker-read-only-user", kept, directory)
    for runtime_name in ("runc", "crun"):
        with place() as directory:
            runtime, kept = recorder(directory, runtime_name)
            podman = Podman(root, directory)
            print("podman", podman.version("podman"))
            podman.run(runtime, ONE, "/bin/true")
            keep(f"podman{suffix}-{runtime_name}-one-gpu", kept, directory)


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
