"""What the hot half loads: names, since those are exact and need no quiet machine."""

import subprocess
import sys
from pathlib import Path

import gpushim

SITE = Path(gpushim.__file__).parent.parent

# Each name is a decision: what a create pays for beyond a bare interpreter.
HOT = {
    "_json",
    "gpushim",
    "gpushim.argv",
    "gpushim.bundle",
    "gpushim.errors",
    "gpushim.files",
    "gpushim.json_text",
    "gpushim.main",
    "gpushim.request",
    "gpushim.resolution",
    "gpushim.settings",
    "gpushim.state",
}
# And what a container that really gets a GPU pays for on top.
GPU = {
    "_cffi_backend",
    "gpushim._native",
    "gpushim._native.lib",
    "gpushim.edits",
    "gpushim.linux",
    "gpushim.names",
    "gpushim.node",
    "gpushim.plan",
    "gpushim.policy",
    "gpushim.present",
    "gpushim.rules",
    "gpushim.selection",
}
# And where the driver's files are given: what finds them anew is started when they have changed.
FILES = {
    "_struct",
    "errno",
    "gpushim.driver",
    "gpushim.driver_files",
    "gpushim.ldcache",
    "gpushim.rootfs",
    "struct",
}
# What a hook that gives a container something pays for.
HOOK = {
    "_socket",
    "errno",
    "gpushim.edits",
    "gpushim.log",
    "gpushim.record",
    "gpushim_hooks",
    "gpushim_hooks.access",
    "gpushim_hooks.bpf",
    "gpushim_hooks.cgroup",
    "gpushim_hooks.container",
    "gpushim_hooks.create_runtime",
    "gpushim_hooks.dbus",
    "gpushim_hooks.device_lists",
    "gpushim_hooks.emulator",
    "gpushim_hooks.instructions",
    "gpushim_hooks.live",
    "gpushim_hooks.main",
    "gpushim_hooks.program",
    "gpushim_hooks.rule",
    "gpushim_hooks.state",
    "gpushim_hooks.systemd",
}
# And what a hook that asks or widens the device programs of a cgroup does.
DEVICE_PROGRAMS = {
    "_cffi_backend",
    "errno",
    "gpushim",
    "gpushim._native",
    "gpushim._native.lib",
    "gpushim.errors",
    "gpushim.linux",
    "gpushim_hooks",
    "gpushim_hooks.bpf",
    "gpushim_hooks.emulator",
    "gpushim_hooks.instructions",
    "gpushim_hooks.program",
    "gpushim_hooks.rule",
}


def loaded(program: str) -> set[str]:
    """The modules that *program* leaves in sys.modules beyond those of a bare interpreter."""
    bare = "import sys\nbefore = set(sys.modules)\n"
    path = f"sys.path.insert(0, {str(SITE)!r})\n"
    end = "\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", bare + path + program + end],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_shim_loads_only_what_it_needs() -> None:
    assert loaded("import gpushim.main") <= HOT


def test_a_gpu_loads_only_what_it_needs() -> None:
    assert (
        loaded("import gpushim.main, gpushim.node, gpushim.selection, gpushim.policy, gpushim.plan")
        <= HOT | GPU
    )


def test_device_programs_load_only_what_they_need() -> None:
    assert loaded("import gpushim_hooks.bpf") <= DEVICE_PROGRAMS


def test_the_c_part_is_not_loaded_for_a_container_that_asks_for_nothing() -> None:
    assert "_cffi_backend" not in loaded("import gpushim.main")


def test_the_drivers_files_load_only_what_they_need() -> None:
    everything = "import gpushim.main, gpushim.driver, gpushim.driver_files, gpushim.rootfs, gpushim.ldcache"
    assert loaded(everything) <= HOT | GPU | FILES


def test_a_hook_loads_only_what_it_needs() -> None:
    everything = (
        "import gpushim_hooks.main, gpushim_hooks.create_runtime, gpushim_hooks.bpf, gpushim_hooks.systemd"
    )
    assert (
        loaded(f"{everything}, gpushim.node, gpushim.selection, gpushim.policy, gpushim.plan")
        <= HOT | GPU | HOOK
    )
    assert "gpushim_hooks.create_runtime" not in loaded("import gpushim_hooks.main")


def test_the_package_itself_loads_nothing() -> None:
    assert loaded("import gpushim.ctl") == {"gpushim", "gpushim.ctl"}
