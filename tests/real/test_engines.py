"""Docker and podman of three generations, gpushim as the runtime they are given."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import image
from tests.real.bed import Ran
from tests.real.conftest import SeedNode
from tests.real.engines import Docker, Podman, docker

ONE = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
ASKED = ("/opens", "/dev/nvidia0:rw", "/dev/nvidia-caps/nvidia-cap66:r", "/dev/nvidia-uvm:rw")
GIVEN = ["ENXIO", "ENXIO", "ENOENT"]


def recorder(directory: Path, runtime: str) -> str:
    """A low-level runtime that keeps the config.json it is given, beside what it was before."""
    path = directory / f"record-{runtime}" / runtime
    path.parent.mkdir()
    copy = f'[ "${{!i}}" = --bundle ] || [ "${{!i}}" = -b ] && j=$((i + 1)) && cp "${{!j}}/config.json" {path}.json'
    path.write_text(f'#!/bin/bash\nfor ((i = 1; i <= $#; i++)); do {copy}; done\nexec {runtime} "$@"\n')
    path.chmod(0o755)
    return str(path)


def answers(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [line.rsplit(" ", 1)[1] for line in ran.out.splitlines()]


@pytest.fixture(scope="module")
def dockerd(root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    directory = Path(tmp_path_factory.mktemp("d"))
    seed = SeedNode(directory / "node")
    with docker(root, directory, {"gpushim": seed.shim(directory / "gpushim")}) as running:
        yield running


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["plain", "read-only"])
def test_docker_gives_one_gpu(dockerd: Docker, options: tuple[str, ...]) -> None:
    assert answers(dockerd.run("gpushim", ONE, *ASKED, options=options)) == GIVEN


def test_docker_shows_a_refusal(dockerd: Docker) -> None:
    ran = dockerd.run("gpushim", (*ONE, "NVIDIA_MIG_MONITOR_DEVICES=all"), "/bin/true")

    assert ran.code == 125
    for words in ("GS0301", "NVIDIA_MIG_MONITOR_DEVICES", "gpushim.policy.mig-monitor"):
        assert words in ran.err


def test_docker_runs_a_plain_container(dockerd: Docker) -> None:
    assert answers(dockerd.run("gpushim", (), *ASKED)) == ["ENOENT"] * 3


@pytest.fixture(scope="module")
def podman(root: str, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    directory = Path(tmp_path_factory.mktemp("p"))
    runtimes = [f'"{recorder(directory, name)}"' for name in ("runc", "crun")]
    # By the name under which it is called, the shim has either as its low-level runtime.
    tables = [
        f"[gpushim.runtimes.shim-{name}]\nruntimes = [{path}]"
        for name, path in zip(("runc", "crun"), runtimes, strict=True)
    ]
    seed = SeedNode(directory / "node", *tables)
    for name in ("runc", "crun"):
        seed.shim(directory / f"shim-{name}")
    # One whose administrator listens to annotations.
    prefixes = '[gpushim]\nannotation-prefixes = ["cdi.k8s.io/"]'
    runc = f"[nvidia-container-runtime]\nruntimes = [{runtimes[0]}]"
    SeedNode(directory / "listening", prefixes, runc).shim(directory / "shim-listens")
    return Podman(root, directory)


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["plain", "read-only"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_gives_one_gpu(podman: Podman, runtime: str, options: tuple[str, ...]) -> None:
    shim = str(podman.directory / f"shim-{runtime}")

    assert answers(podman.run(shim, ONE, *ASKED, options=options)) == GIVEN


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_runs_a_plain_container(podman: Podman, runtime: str) -> None:
    shim = str(podman.directory / f"shim-{runtime}")

    assert answers(podman.run(shim, (), *ASKED)) == ["ENOENT"] * 3


def test_podman_shows_a_refusal(podman: Podman) -> None:
    ran = podman.run(
        str(podman.directory / "shim-runc"), (*ONE, "NVIDIA_MIG_MONITOR_DEVICES=all"), "/bin/true"
    )

    assert ran.code != 0
    assert "GS0301" in ran.err


def test_podman_annotations_of_an_image_ask_for_nothing(podman: Podman, tmp_path: Path) -> None:
    hostile = {"cdi.k8s.io/x": "nvidia.com/gpu=all", "dev.gpushim/injected": "forged"}
    archive = podman.directory / "hostile.tar"
    image.make(archive, "localhost/gpushim/hostile:1", Path("/bin/busybox"), podman.directory / "prober", annotations=hostile)  # fmt: skip
    loaded = podman.podman("", "pull", f"oci-archive:{archive}")
    assert loaded.code == 0, loaded.err
    name = loaded.out.split()[-1]

    ran = podman.run(str(podman.directory / "shim-listens"), (), *ASKED, image_name=name)

    assert answers(ran) == ["ENOENT"] * 3
    config = json.loads((podman.directory / "record-runc/runc.json").read_text())
    if podman.version("podman") < (5, 0):  # later ones no longer copy what an image says
        assert config["annotations"]["cdi.k8s.io/x"] == "nvidia.com/gpu=all"
    assert "dev.gpushim/injected" not in config["annotations"]


def test_podman_annotations_of_the_user_ask_for_nothing(podman: Podman) -> None:
    """podman copies an image's annotations into the config as it does the user's: none of them may count."""
    options = ("--annotation=cdi.k8s.io/x=nvidia.com/gpu=all", "--annotation=dev.gpushim/injected=forged")

    assert (
        answers(podman.run(str(podman.directory / "shim-runc"), (), *ASKED, options=options))
        == ["ENOENT"] * 3
    )
    config = json.loads((podman.directory / "record-runc/runc.json").read_text())
    assert "dev.gpushim/injected" not in config["annotations"]
