"""The hook in front of containers that are set up in other ways, or by an image that means harm."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real.bed import BIN, Bed, Cell, Ran, lacking
from tests.real.test_hook import Hooked
from tests.real.test_odd_containers import HYBRID, in_user_namespace, with_the_hosts_dev
from tests.real.test_seed import CONFIG, DEVICES, GPU, INSTANCES, MONITOR, MONITORED, NOT_CONFIGURED, REPORTER

ALLOWED = ("[gpushim.policy]", 'mig-monitor = "allow"', 'mig-config = "allow"')
CAP1, CAP2 = "/dev/nvidia-caps/nvidia-cap1:r", "/dev/nvidia-caps/nvidia-cap2:r"


@pytest.fixture
def hooked(bed: Bed) -> Hooked:
    # In a user namespace root is another user to the host: it must reach the root of the container.
    for parent in (bed.directory, *bed.directory.parents):
        if os.stat(parent).st_mode & 0o055 != 0o055:
            os.chmod(parent, 0o755)
    return Hooked(bed, bed.directory / f"odd{len(list(bed.directory.iterdir()))}", *ALLOWED)


def test_in_a_user_namespace_even_cap1_opens(hooked: Hooked) -> None:
    """The nodes are of the host's user namespace, and belong to the container's root: mode 0400 is no obstacle."""
    bundle = hooked.bundle(*DEVICES, *MONITOR, *CONFIG, change=in_user_namespace)

    ran = hooked.run(bundle)

    assert (ran.code, ran.err, hooked.log) == (0, "", "")
    opens = hooked.named(ran)
    asked = {"cap1:r", "cap2:r", "cap66:r", "cap67:r", "nvidiactl:rw", "nvidia0:rw", "nvidia-uvm:rw"}
    assert {opens[item] for item in asked} == {"ENXIO"}
    assert (opens["cap1:w"], opens["cap2:w"]) == ("EPERM", "EPERM")


def test_a_second_run_changes_nothing(hooked: Hooked) -> None:
    """As `runc restore` does, which runs the hooks again."""

    def twice(config: dict[str, Any]) -> None:
        config["hooks"]["createRuntime"] *= 2

    assert hooked.opens(*REPORTER, change=twice) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED
    assert hooked.log == ""


def test_prestart_is_the_same(hooked: Hooked) -> None:
    hooked.stage, hooked.command = "prestart", "prestart"

    assert hooked.opens(*REPORTER) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED


def test_nothing_lands_in_the_hosts_dev(hooked: Hooked) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has nodes of a real driver")
    item = f"c:{hooked.node.caps_major}:2:r"

    def change(config: dict[str, Any]) -> None:
        with_the_hosts_dev(config)
        config["process"]["args"] = ["/opens", "/dev/nvidia0:rw", item]

    ran = hooked.run(hooked.bundle(*DEVICES, *MONITOR, change=change))

    assert (ran.code, ran.err) == (0, "")
    assert ran.opens == {"/dev/nvidia0:rw": "ENOENT", item: "ENXIO"}
    assert [path for path in Path("/dev").iterdir() if path.name.startswith("nvidia")] == []
    assert "no node is made" in hooked.log


def without_dev(config: dict[str, Any]) -> None:
    """A container that mounts nothing at /dev: what its image has there shows."""
    config["mounts"] = [one for one in config["mounts"] if not one["destination"].startswith("/dev")]


def link_to_the_host(dev: Path, canary: Path) -> None:
    (dev / "nvidia-caps").symlink_to(canary)


def link_upwards(dev: Path, canary: Path) -> None:
    (dev / "nvidia-caps").symlink_to("../../../../../../../../../../../.." + str(canary))


def link_to_proc(dev: Path, canary: Path) -> None:
    (dev / "nvidia-caps").symlink_to(f"/proc/self/root{canary}")


def file_in_the_way(dev: Path, canary: Path) -> None:
    (dev / "nvidia-caps").write_text("")


@pytest.mark.parametrize("plant", [link_to_the_host, link_upwards, link_to_proc, file_in_the_way])
def test_what_an_image_plants_in_dev_is_never_followed(
    hooked: Hooked, plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    root = own_root(hooked)
    plant(root / "dev", canary)

    ran = hooked.run(hooked.bundle(*REPORTER, change=lambda config: in_root(config, root)))

    assert ran.code != 0
    assert "GS0762: /dev/nvidia-caps/nvidia-cap" in ran.err + hooked.log
    assert "a link or file of the container is in the way: nothing is given" in ran.err + hooked.log
    assert list(canary.iterdir()) == []
    # Nor is anything half-done left behind.
    assert sorted(path.name for path in (root / "dev").iterdir() if "nvidia" in path.name) == ["nvidia-caps"]


def test_a_file_of_the_image_at_the_place_of_a_node_is_a_conflict(hooked: Hooked) -> None:
    root = own_root(hooked)
    (root / "dev/nvidia0").write_text("mine")

    ran = hooked.run(hooked.bundle(*REPORTER, change=lambda config: in_root(config, root)))

    assert ran.code != 0
    assert (
        "GS0761: /dev/nvidia0: the container has something else there: nothing is given"
        in ran.err + hooked.log
    )
    assert (root / "dev/nvidia0").read_text() == "mine"
    assert [path.name for path in (root / "dev").iterdir() if "nvidia" in path.name] == ["nvidia0"]


def own_root(hooked: Hooked) -> Path:
    """A root of the container's own, at a place that its cell sees."""
    root = hooked.bed.directory / f"root{len(list(hooked.bed.directory.iterdir()))}"
    subprocess.run(["cp", "-a", str(hooked.bed.rootfs), str(root)], check=True)
    return root


def in_root(config: dict[str, Any], root: Path) -> None:
    without_dev(config)
    config["root"]["path"] = str(root)


def test_both_versions_of_cgroups_at_once(tmp_path: Path) -> None:
    cell = Cell("host", "runc", "v1")
    if reason := lacking(cell):
        pytest.skip(reason)
    bed = Bed(cell, tmp_path)
    hooked = Hooked(bed, bed.directory / "hybrid", *ALLOWED)
    bundle = hooked.bundle(*REPORTER)
    argv = [
        "runc",
        "--root",
        str(bed.directory / "run"),
        "run",
        "--bundle",
        str(bundle),
        "gpushim-hybrid-hook",
    ]

    done = subprocess.run(["unshare", "-m", "sh", "-ec", HYBRID, "sh", *argv], capture_output=True, text=True)

    assert (done.returncode, done.stderr, hooked.log) == (0, "", "")
    assert hooked.named(Ran(0, done.stdout, "")) == GPU | INSTANCES | MONITORED | NOT_CONFIGURED


HOSTILE = {
    "LD_PRELOAD": "/canary.so",
    "LD_LIBRARY_PATH": "/",
    "LD_AUDIT": "/canary.so",
    "GCONV_PATH": "/",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "PYTHONPATH": "/",
    "PYTHONHOME": "/",
    "PYTHONSTARTUP": "/sitecustomize.py",
    "PYTHONINSPECT": "1",
    "PATH": "/",
    "XDG_CONFIG_HOME": "/",
    "XDG_RUNTIME_DIR": "/",
    "GPUSHIM_CONFIG": "/config.toml",
    "GPUSHIM_STATE": "/",
    "NVIDIA_CTK_CONFIG_FILE_PATH": "/config.toml",
}


@pytest.mark.parametrize("command", ["create-runtime", "prestart", "create-container", "poststart", ""])
def test_a_hostile_environment_and_directory_change_nothing(tmp_path: Path, command: str) -> None:
    """Advisory CVE-2025-23266: some engines hand a hook the image's environment, in the image's root."""
    root = tmp_path / "root"
    (root / "encodings").mkdir(parents=True)
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("sitecustomize", "json", "os", "posix", "gpushim", "gpushim_hooks", "encodings/__init__"):
        (root / f"{name}.py").write_text(code)
    (root / "pyvenv.cfg").write_text(f"home = {root}\n")
    (root / "config.toml").write_text('[gpushim]\nlog = "/canary"\n')
    source = tmp_path / "canary.c"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void touch(void) {{ open("{canary}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    library = root / "canary.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    env = {
        name: value.replace("/canary.so", str(library)).replace("/", f"{root}/", 1)
        for name, value in HOSTILE.items()
    }
    env["LD_PRELOAD"] = env["LD_AUDIT"] = str(library)
    state = json.dumps({"id": "x", "pid": 1, "bundle": str(tmp_path / "none")})
    options = ["--state", str(tmp_path / "state"), "--config", str(tmp_path / "none.toml")]

    done = subprocess.run(
        [str(BIN / "gpushim-hook"), *options, *([command] if command else [])],
        input=state,
        env=env,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == (0 if command == "poststart" else 1)
    assert "Traceback" not in done.stderr
    assert not canary.exists()
