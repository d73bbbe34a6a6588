"""`make demo`: the pod that other runtimes leave without access, before and after, under a real runc."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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


class Row(NamedTuple):
    """One question, and what a container of gpushim must be told; a plain one may open none of these."""

    name: str
    mode: str
    what: str
    item: str
    given: bool


# Wider than most terminals' 80, for explain's longest reason to stand on one line.
WIDTH = 116


def main() -> int:
    out = Console(width=WIDTH, highlight=False)
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
    rows = questions(caps, real=real)
    items = [row.item for row in rows]
    # Device nodes of real GPUs are opened by their numbers too: the plain container has no nodes.
    bundle = bed.bundle(items, POD, capabilities=ADMIN)
    shim = str(BIN / "gpushim-runtime")
    explain = subprocess.run(
        [str(BIN / "gpushim"), "explain", str(bundle)], env={**os.environ, **env, "COLUMNS": str(WIDTH)}, text=True, capture_output=True
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
    for row in rows:
        answers = [ran.opens[row.item] for ran in (before, after)]
        table.add_row(row.name, row.mode, row.what, *[WORDS.get(answer, answer) for answer in answers])
    out.print(table)
    if not real:
        out.print(
            "How that is known without a GPU: opening a device whose driver is missing answers ENXIO if the device "
            "cgroup lets it through, and EPERM if not.\n"
        )
    out.print("[bold]And why: `gpushim explain BUNDLE`[/]\n")
    out.print(explain.stdout, markup=False)
    out.print("Next: `make test` runs everything; README.md says how to install.")
    return verdict(out, rows, before.opens, after.opens)


def questions(caps: int, *, real: bool) -> list[Row]:
    gpu = lowest("nvidia", range(195)) if real else 0
    gi = lowest("nvidia-caps/nvidia-cap", range(3, 4323, 9)) if real else 66
    rows = [Row("/dev/nvidiactl", "rw", "the driver", "/dev/nvidiactl:rw", True)]
    if gpu is not None:
        rows.append(Row(f"/dev/nvidia{gpu}", "rw", "a GPU", f"/dev/nvidia{gpu}:rw", True))
    if gi is not None:
        rows += [
            Row(f"nvidia-cap{gi}", "r", "a MIG GPU instance", f"c:{caps}:{gi}:r", True),
            Row(f"nvidia-cap{gi + 1}", "r", "its compute instance", f"c:{caps}:{gi + 1}:r", True),
        ]
    rows += [
        Row("nvidia-cap2", "r", "[bold]MIG monitoring[/]: what this pod asks for", f"c:{caps}:2:r", True),
        Row("nvidia-cap2", "w", "the same, for writing", f"c:{caps}:2:w", False),
        Row("nvidia-cap1", "r", "MIG configuration: not asked for", f"c:{caps}:1:r", False),
        # Of a thirtieth GPU, which no machine has.
        Row("nvidia-cap4000", "r", "another capability: not asked for", f"c:{caps}:4000:r", False),
    ]
    return rows


def simulated_node(directory: Path) -> tuple[dict[str, str], int]:
    node = fakenode.build(directory, "seed", avoid=fakenode.real_majors())
    for sentence in fakenode.moved(fakenode.NODES["seed"], node):
        print(sentence)
    return environment(directory), node.caps_major


def real_node(directory: Path) -> tuple[dict[str, str], int]:
    directory.mkdir()
    (directory / "config.toml").write_text("")
    lines = [line.split() for line in Path("/proc/devices").read_text().splitlines()]
    majors = {words[1]: int(words[0]) for words in lines if len(words) == 2 and words[0].isdigit()}
    return environment(directory), majors.get("nvidia-caps", 0)


def environment(directory: Path) -> dict[str, str]:
    return {"GPUSHIM_CONFIG": str(directory / "config.toml"), "GPUSHIM_STATE": str(directory / "state")}


def lowest(prefix: str, numbers: range) -> int | None:
    """The first of *numbers* that a device node of this machine has behind *prefix*."""
    return next((number for number in numbers if Path(f"/dev/{prefix}{number}").exists()), None)


def verdict(out: Console, rows: list[Row], before: dict[str, str], after: dict[str, str]) -> int:
    """Exit status: 1 unless each row is as it must be, for plain runc and for gpushim."""
    wrong = []
    for row in rows:
        if not refused(before[row.item]):
            wrong.append(f"{row.name} ({row.mode}): plain runc lets it be opened: {before[row.item]}")
        if refused(after[row.item]) == row.given:
            must = "is to be opened" if row.given else "is not to be opened"
            wrong.append(f"{row.name} ({row.mode}): {must} with gpushim: {after[row.item]}")
    for line in wrong:
        out.print(f"[red]wrong[/] {line}")
    return 1 if wrong else 0


def refused(answer: str) -> bool:
    """Whether the container had no node, or the cgroup stopped it: any other answer is the driver's own."""
    return answer in ("ENOENT", "EPERM", "EACCES", "no mknod")


if __name__ == "__main__":
    sys.exit(main())
