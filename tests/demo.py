"""`make demo`: the pod that other runtimes leave without access, before and after, under a real runc."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import fakenode
from tests.real.bed import ADMIN, BIN, Bed, Cell

POD = (
    "MPS_ROOT=/run/nvidia/mps",
    "MIG_STRATEGY=mixed",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_MIG_MONITOR_DEVICES=all",
)
WORDS = {
    "ENXIO": "[green]may open it[/]",  # the cgroup let it through to a driver that is not there
    "open": "[green]opens[/]",
    "EPERM": "[red]denied[/] (EPERM)",
    "ENOENT": "[dim]no such node[/]",
}


def main() -> int:
    out = Console(width=110, highlight=False)
    lacks = [name for name in ("runc", "gcc", "unshare") if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacks.insert(0, "root, since it starts a real container")
    if lacks:
        out.print(
            f"missing: {', '.join(lacks)}\nhint: as root on Debian, `make demo` installs the rest itself"
        )
        return 1
    with tempfile.TemporaryDirectory() as directory:
        return show(out, Path(directory))


def show(out: Console, directory: Path) -> int:
    cgroup = "v1" if Path("/sys/fs/cgroup/devices").exists() else "v2"
    bed = Bed(Cell("host", "runc", cgroup), directory)
    real = Path("/proc/driver/nvidia/version").exists()
    env, caps = (real_node if real else simulated_node)(directory / "node")
    gi = next_instance(caps) if real else 66
    rows = [
        ("/dev/nvidiactl", "rw", "the driver", "/dev/nvidiactl:rw"),
        ("/dev/nvidia0", "rw", "GPU 0", "/dev/nvidia0:rw"),
        (f"nvidia-cap{gi}", "r", "a MIG GPU instance", f"c:{caps}:{gi}:r"),
        (f"nvidia-cap{gi + 1}", "r", "its compute instance", f"c:{caps}:{gi + 1}:r"),
        ("nvidia-cap2", "r", "[bold]MIG monitoring[/]: what this pod asks for", f"c:{caps}:2:r"),
        ("nvidia-cap2", "w", "the same, for writing", f"c:{caps}:2:w"),
        ("nvidia-cap1", "r", "MIG configuration: not asked for", f"c:{caps}:1:r"),
        ("nvidia-cap500", "r", "another capability: not asked for", f"c:{caps}:500:r"),
    ]
    items = [row[3] for row in rows]
    # Device nodes of real GPUs are opened by their numbers too: the plain container has no nodes.
    bundle = bed.bundle(items, POD, capabilities=ADMIN)
    shim = str(BIN / "gpushim-runtime")
    explain = subprocess.run(
        [str(BIN / "gpushim"), "explain", str(bundle)], env={**os.environ, **env, "COLUMNS": "110"}, text=True, capture_output=True
    )  # fmt: skip
    before = bed.run(bundle)
    after = bed.run(bundle, shim, env=env)
    if before.code or after.code or explain.returncode:
        out.print(before.err + after.err + explain.stderr + explain.stdout, markup=False)
        return 1

    out.print(
        "A pod that monitors MIG, [bold]not privileged[/], with CAP_SYS_ADMIN: the NVIDIA device plugin with "
        "MIG_STRATEGY=mixed and NVIDIA_MIG_MONITOR_DEVICES=all."
    )
    where = (
        "this machine's own GPUs"
        if real
        else "a simulated node: H100 NVL, driver 580.126.09, seven MIG instances"
    )
    out.print(f"On {where}; real runc, cgroup {cgroup}.\n")
    table = Table(title="What can the container open?")
    for column in ("device", "for", "which is", "plain runc", "gpushim"):
        table.add_column(column)
    for name, mode, what, item in rows:
        table.add_row(
            name, mode, what, *[WORDS.get(ran.opens[item], ran.opens[item]) for ran in (before, after)]
        )
    out.print(table)
    if not real:
        out.print(
            "How that is known without a GPU: opening a device whose driver is missing answers ENXIO if the device "
            "cgroup lets it through, and EPERM if not.\n"
        )
    out.print("[bold]And why: `gpushim explain BUNDLE`[/]\n")
    out.print(explain.stdout, markup=False)
    out.print("Next: `make test` runs everything; README.md says how to install.")
    return verdict(out, before.opens, after.opens, caps, gi)


def simulated_node(directory: Path) -> tuple[dict[str, str], int]:
    node = fakenode.build(directory, "seed", avoid=fakenode.real_majors())
    return environment(directory), node.caps_major


def real_node(directory: Path) -> tuple[dict[str, str], int]:
    directory.mkdir()
    (directory / "config.toml").write_text("")
    lines = [line.split() for line in Path("/proc/devices").read_text().splitlines()]
    majors = {words[1]: int(words[0]) for words in lines if len(words) == 2 and words[0].isdigit()}
    return environment(directory), majors.get("nvidia-caps", 0)


def environment(directory: Path) -> dict[str, str]:
    return {"GPUSHIM_CONFIG": str(directory / "config.toml"), "GPUSHIM_STATE": str(directory / "state")}


def next_instance(caps: int) -> int:
    """The lowest capability minor of a GPU instance of this machine; the seed's where it has none."""
    nodes = sorted(int(path.name[10:]) for path in Path("/dev/nvidia-caps").glob("nvidia-cap*"))
    return next((minor for minor in nodes if minor > 2 and (minor - 3) % 9 == 0), 66)


def verdict(out: Console, before: dict[str, str], after: dict[str, str], caps: int, gi: int) -> int:
    wanted = f"c:{caps}:2:r"
    if before[wanted] == "EPERM" and after[wanted] in ("ENXIO", "open") and after[f"c:{caps}:1:r"] == "EPERM":
        return 0
    out.print("[red]This is not what it must be.[/]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
