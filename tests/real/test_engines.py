"""Docker and podman of three generations, gpushim as the runtime they are given."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakenode import driver
from tests.real import image
from tests.real.bed import BIN, Ran
from tests.real.conftest import SeedNode, recorder
from tests.real.engines import NAME, Docker, Engine, Podman, docker

ONE = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
ASKED = ("/opens", "/dev/nvidia0:rw", "/dev/nvidia-caps/nvidia-cap66:r", "/dev/nvidia-uvm:rw")
GIVEN = ["ENXIO", "ENXIO", "ENOENT"]


def answers(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [line.rsplit(" ", 1)[1] for line in ran.out.splitlines()]


@pytest.fixture(scope="module")
def dockerd(root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    directory = Path(tmp_path_factory.mktemp("d"))
    runc = recorder(directory / "record-runc" / "runc", "runc")
    seed = SeedNode(directory / "node", f'[nvidia-container-runtime]\nruntimes = ["{runc}"]')
    driver.install(directory / "node/driver")
    with docker(root, directory, {"gpushim": seed.shim(directory / "gpushim")}) as running:
        yield running


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["plain", "read-only"])
def test_docker_gives_one_gpu(dockerd: Docker, options: tuple[str, ...]) -> None:
    assert answers(dockerd.run("gpushim", ONE, *ASKED, options=options)) == GIVEN


LIBRARIES = f"/{driver.WHERE}"
SHOW = ("/bin/busybox", "sh", "-c", f"busybox readlink {LIBRARIES}/libnvidia-ml.so.1; busybox grep -c {LIBRARIES} /proc/mounts")  # fmt: skip
SHOWN = f"libnvidia-ml.so.{driver.VERSION}\n1\n"


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["plain", "read-only"])
def test_docker_gives_the_drivers_files(dockerd: Docker, options: tuple[str, ...]) -> None:
    ran = dockerd.run("gpushim", ONE, *SHOW, options=options)

    assert (ran.code, ran.out) == (0, SHOWN), ran.err
    config = json.loads((dockerd.directory / "record-runc/runc.json").read_text())
    assert "createContainer" not in config.get("hooks", {})


def test_docker_shows_a_refusal(dockerd: Docker) -> None:
    ran = dockerd.run("gpushim", (*ONE, "NVIDIA_MIG_MONITOR_DEVICES=all"), "/bin/true")

    assert ran.code == 125
    for words in ("GS0301", "NVIDIA_MIG_MONITOR_DEVICES", "gpushim.policy.mig-monitor"):
        assert words in ran.err


def test_docker_runs_a_plain_container_untouched(dockerd: Docker) -> None:
    assert answers(dockerd.run("gpushim", (), *ASKED)) == ["ENOENT"] * 3
    before = (dockerd.directory / "gpushim.before.json").read_bytes()
    assert (dockerd.directory / "record-runc/runc.json").read_bytes() == before


@pytest.fixture(scope="module")
def docker_with_hook(root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A dockerd that finds NVIDIA's hook, which is ours under its name."""
    directory = Path(tmp_path_factory.mktemp("g"))
    seed = SeedNode(directory / "node")
    hook = seed.hook(directory / "bin/nvidia-container-runtime-hook")
    with docker(root, directory, {}, path=str(Path(hook).parent)) as running:
        yield running


def test_docker_gpus_gives_them_by_the_hook(docker_with_hook: Docker) -> None:
    ran = docker_with_hook.run("runc", (), *ASKED, options=("--gpus=device=0",))

    assert answers(ran) == ["ENXIO", "ENXIO", "ENXIO"]


def test_docker_update_leaves_what_the_hook_gave_and_devices_knows_dockers_ids(
    docker_with_hook: Docker,
) -> None:
    dockerd = docker_with_hook
    options = ["--network=host", "--runtime=runc", "--gpus=device=0"]
    started = dockerd.docker("run", "-d", "--name=updated", *options, NAME, "/opens", "wait")
    assert started.code == 0, started.err
    root = ("--root", f"{dockerd.directory}/exec/runtime-runc/moby")

    def asked() -> list[str]:
        return answers(dockerd.docker("exec", "updated", *ASKED))

    assert asked() == ["ENXIO"] * 3
    updated = dockerd.docker("update", "--cpu-shares=512", "updated")
    assert updated.code == 0, updated.err
    assert asked() == ["ENXIO"] * 3
    code, report = devices(dockerd, started.out.strip()[:12], *root)
    assert (code, report["container"]["id"]) == (0, started.out.strip())
    assert {row["opens"] for row in report["devices"] if row["asked"]} == {True}
    dockerd.docker("rm", "-f", "updated")


def devices(engine: Engine, *args: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of `gpushim devices --json` in the engine's own view."""
    config = engine.directory / "node/config.toml"
    env = {"GPUSHIM_CONFIG": str(config), "GPUSHIM_STATE": str(engine.directory / "node/state")}
    ran = engine.run_here(str(BIN / "gpushim"), "devices", "--json", *args, env=env)
    assert ran.out.startswith("{"), ran.err
    return ran.code, json.loads(ran.out)


def test_docker_shows_what_the_hook_refuses(docker_with_hook: Docker) -> None:
    ran = docker_with_hook.run(
        "runc", ("NVIDIA_MIG_MONITOR_DEVICES=all",), "/bin/true", options=("--gpus=all",)
    )

    assert ran.code == 125
    assert "GS0301: NVIDIA_MIG_MONITOR_DEVICES: refused" in ran.err


@pytest.fixture(scope="module")
def podman(root: str, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    directory = Path(tmp_path_factory.mktemp("p"))
    runtimes = [f'"{recorder(directory / f"record-{name}" / name, name)}"' for name in ("runc", "crun")]
    # By the name under which it is called, the shim has either as its low-level runtime.
    tables = [
        f"[gpushim.runtimes.shim-{name}]\nruntimes = [{path}]"
        for name, path in zip(("runc", "crun"), runtimes, strict=True)
    ]
    seed = SeedNode(directory / "node", *tables)
    driver.install(directory / "node/driver")
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


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["plain", "read-only"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_gives_the_drivers_files(podman: Podman, runtime: str, options: tuple[str, ...]) -> None:
    ran = podman.run(str(podman.directory / f"shim-{runtime}"), ONE, *SHOW, options=options)

    assert (ran.code, ran.out) == (0, SHOWN), ran.err


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_runs_a_plain_container_untouched(podman: Podman, runtime: str) -> None:
    shim = str(podman.directory / f"shim-{runtime}")

    assert answers(podman.run(shim, (), *ASKED)) == ["ENOENT"] * 3
    before = (podman.directory / f"shim-{runtime}.before.json").read_bytes()
    assert (podman.directory / f"record-{runtime}/{runtime}.json").read_bytes() == before


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


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_gives_one_gpu_by_hooks_d(podman: Podman, runtime: str) -> None:
    """As `gpushim hook install podman` writes it, for the engine's plain runtime."""
    node = podman.directory / "by-hook"
    seed = SeedNode(node) if not node.exists() else None
    hooks = node / "hooks.d"
    if seed is not None:
        options = ["--config", seed.env["GPUSHIM_CONFIG"], "--state", seed.env["GPUSHIM_STATE"]]
        command = [str(BIN / "gpushim"), "hook", "install", "podman", "--directory", str(hooks), *options]
        subprocess.run(command, check=True, capture_output=True)
    with_hooks = podman.with_options(f"--hooks-dir={hooks}")

    assert answers(with_hooks.run(runtime, ONE, *ASKED)) == ["ENXIO", "ENXIO", "ENOENT"]
    assert answers(with_hooks.run(runtime, (), *ASKED)) == ["ENOENT"] * 3
    assert not (node / "state/hook.log").exists()


# sh -c ASK GPUSHIM PODMAN...: in one view, since each has a /run of its own, where runtimes keep their state.
ASK = """gpushim=$0
id=$("$@" run -d --network=host --ulimit=nofile=1024:1024 --ulimit=nproc=1024:1024 --env=$ASKS $IMAGE /opens wait)
$gpushim devices --json "$id"
echo "$?" "$id"
"$@" rm -f -t 0 "$id" >/dev/null
"""


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_devices_knows_podmans_ids(podman: Podman, runtime: str) -> None:
    node = podman.directory / "node"
    env = {"GPUSHIM_CONFIG": f"{node}/config.toml", "GPUSHIM_STATE": f"{node}/state"}
    command = podman.command(str(podman.directory / f"shim-{runtime}"))

    ran = podman.run_here(
        "sh", "-c", ASK, str(BIN / "gpushim"), *command, env=env | {"ASKS": ONE[0], "IMAGE": NAME}
    )

    text, _, last = ran.out.rstrip().rpartition("\n")
    code, id = last.split()
    report = json.loads(text)
    assert (code, report["container"]["id"]) == ("0", id)
    assert {row["opens"] for row in report["devices"] if row["asked"]} == {True}
