"""`make bench`: what gpushim adds, in units measured in the same run, since machines differ.

P is the wall time of `PYTHON -I -S -c pass` with the interpreter that the launcher execs, N that of a static C
program that does nothing. Cases are interleaved, each on a fresh copy of its config.json, which is not timed.
"""

import copy
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests import fakenode
from tests.fakenode import driver

RUNS = int(os.environ.get("RUNS", "60"))
BIN = Path(sys.executable).parent
LAUNCHER = str(BIN / "gpushim-runtime")
HOOK = str(BIN / "gpushim-hook")
PYTHON = str(BIN / f"python{sys.version_info.major}.{sys.version_info.minor}")


NOTHING = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

int main(void)
{
	struct rusage used;

	if (getenv("PEAK") && getrusage(RUSAGE_SELF, &used) == 0)
		printf("%ld\\n", used.ru_maxrss);
	return 0;
}
"""


class Case:
    """One command line, timed again and again; *before* puts back what the last run changed, *after* ends it all."""

    def __init__(
        self,
        name: str,
        argv: list[str],
        *,
        env: dict[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        budget: str = "",
        unit: str = "P",
        less: str = "",
        stdin: Path = Path("/dev/null"),
    ) -> None:
        self.name = name
        self.argv = argv
        self.env = {**os.environ, **(env or {})}
        self.before = before
        self.after = after
        self.budget = budget
        self.unit = unit
        self.less = less
        self.stdin = stdin
        self.times: list[float] = []

    def run(self, null: int) -> None:
        self.before()
        given = os.open(self.stdin, os.O_RDONLY)
        actions = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        started = time.perf_counter_ns()
        pid = os.posix_spawn(self.argv[0], self.argv, self.env, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        self.times.append((time.perf_counter_ns() - started) / 1e6)
        os.close(given)
        if status:
            raise SystemExit(f"{self.name}: exit status {os.waitstatus_to_exitcode(status)}")


def cases(directory: Path, config: dict[str, Any]) -> list[Case]:
    nothing = directory / "nothing"
    source = directory / "nothing.c"
    source.write_text(NOTHING)
    subprocess.run(["gcc", "-O2", "-static", "-o", str(nothing), str(source)], check=True)
    out = [
        Case("N: a static C program", [str(nothing)]),
        Case("P: a bare interpreter", [PYTHON, "-I", "-S", "-c", "pass"]),
    ]

    def environment(name: str, node: str) -> dict[str, str]:
        root = directory / name
        fakenode.build(root, node)
        with (root / "config.toml").open("a") as settings:
            settings.write(f'\n[nvidia-container-runtime]\nruntimes = ["{nothing}"]\n')
        env = {"GPUSHIM_CONFIG": str(root / "config.toml"), "GPUSHIM_STATE": str(root / "state")}
        # Any create compiles the settings, one that fails too.
        argv = [LAUNCHER, "create", "--bundle", str(directory), "id"]
        subprocess.run(argv, env={**os.environ, **env}, capture_output=True)
        return env

    def create(
        name: str,
        env: dict[str, str],
        *variables: str,
        cold: bool = False,
        tree: dict[str, Any] = config,
        first: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> None:
        bundle = directory / f"bundle {len(out)}"
        bundle.mkdir()
        tree = copy.deepcopy(tree)
        tree["process"]["env"] += variables
        (bundle / "fresh").write_text(json.dumps(tree, separators=(",", ":")))

        def before() -> None:
            shutil.copyfile(bundle / "fresh", bundle / "config.json")
            first()
            if cold:
                shutil.rmtree(env["GPUSHIM_STATE"], ignore_errors=True)

        argv = [LAUNCHER, "--root", "/x", "--log", "/dev/null", "create", "--bundle", str(bundle), "id"]
        out.append(Case(name, argv, env=env, before=before, **more))

    eight = environment("eight-gpus", "eight-gpus")
    cold = environment("cold", "eight-gpus")
    sixteen = environment("sixteen-gpus", "sixteen-gpus")
    visible = "NVIDIA_VISIBLE_DEVICES="
    out.append(
        Case("pass-through (`state`), added", [LAUNCHER, "--root", "/x", "state", "id"], env=eight, budget="1", unit="N", less="N")
    )  # fmt: skip
    create("create that asks for nothing, added", eight, budget="1.5", unit="N", less="N")
    create("create with a trigger, `void`", eight, visible + "void", budget="1.3")
    create("create, `all` on 8 GPUs", eight, visible + "all", budget="1.6")
    with_files = environment("with-files", "eight-gpus")
    driver.install(directory / "with-files/driver")
    past = time.time() - 60
    for path in (directory / "with-files/driver").rglob("*"):  # nothing is kept of what has just changed
        os.utime(path, (past, past), follow_symlinks=False)
    root = directory / "root"
    (root / "lib64").mkdir(parents=True)
    (root / "etc").mkdir()
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
    shutil.copy("/etc/ld.so.cache", root / "etc")
    rooted = {**config, "root": {"path": str(root)}}

    def fresh_root() -> None:
        shutil.copy("/etc/ld.so.cache", root / "etc")
        shutil.rmtree(root / "usr", ignore_errors=True)
        shutil.rmtree(root / "etc/ld.so.conf.d", ignore_errors=True)

    name = f"same, with driver files, {ldconfig_lists()} libraries in its cache"
    create(name, with_files, visible + "all", tree=rooted, first=fresh_root, budget="1.8")
    hanging = environment("gpu-hangs", "gpu-hangs")
    create("create, GPU 0 while GPU 2 hangs", hanging, visible + "0", budget="1.6")
    eight_by_seven = environment("eight-by-seven", "eight-by-seven")
    gpu = fakenode.NODES["eight-by-seven"].gpus[3]
    create(
        "create, one of 8 x 7 MIG by UUID",
        eight_by_seven,
        visible + fakenode.mig_uuid(gpu, 9, 0),
        budget="2.2",
    )
    create(
        "create, 16 GPUs x 7 MIG, `all` + monitor",
        sixteen,
        visible + "all",
        "NVIDIA_MIG_MONITOR_DEVICES=all",
        budget="1.5",
        unit="8-GPU create",
    )
    create("first create, cold state, 8 GPUs", cold, visible + "all", cold=True, budget="6")
    if os.geteuid() == 0:
        out += hooks(directory, eight, config, visible + "all")
    return out


def ldconfig_lists() -> int:
    """Of this machine's own cache."""
    out = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return out.count(" => ")


def hooks(directory: Path, env: dict[str, str], config: dict[str, Any], asks: str) -> list[Case]:
    """The hook in front of a process with a root, a mount namespace and a cgroup of its own, new for each run."""
    out: list[Case] = []
    for name, variable, budget in (("that asks for nothing", "A=b", ""), ("`all` on 8 GPUs", asks, "3")):
        live = Live(directory / f"live {len(out)}", config, variable)
        options = ["--config", env["GPUSHIM_CONFIG"], "--state", env["GPUSHIM_STATE"]]
        argv = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(live.bundle), HOOK, *options, "create-runtime"]
        title = f"`gpushim-hook create-runtime` {name} (with a `sh` around it)"
        out.append(Case(title, argv, before=live.renew, after=live.end, budget=budget, stdin=live.state))
    return out


class Live:
    """What stands for a container at createRuntime; the cgroup is of whichever version this machine filters by."""

    def __init__(self, directory: Path, config: dict[str, Any], variable: str) -> None:
        self.bundle = directory
        self.state = directory / "state.json"
        self.root = directory / "rootfs"
        self.root.mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None
        tree = copy.deepcopy(config)
        tree["root"]["path"] = str(self.root)
        tree["process"]["env"].append(variable)
        (directory / "config.json").write_text(json.dumps(tree))
        v1 = Path("/sys/fs/cgroup/devices")
        self.cgroup = (
            v1 if v1.is_dir() else Path("/sys/fs/cgroup")
        ) / f"gpushim-bench-{os.getpid()}-{directory.name[-1]}"

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        while (self.cgroup / "cgroup.procs").exists() and (self.cgroup / "cgroup.procs").read_text():
            time.sleep(0.001)  # its last process is leaving still
        if self.cgroup.is_dir():
            self.cgroup.rmdir()

    def renew(self) -> None:
        self.end()
        shutil.rmtree(self.root / "dev", ignore_errors=True)
        (self.root / "dev").mkdir()
        self.process = subprocess.Popen(["unshare", "-m", "sleep", "600"])
        while os.readlink(f"/proc/{self.process.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            time.sleep(0.001)
        self.cgroup.mkdir()
        if (self.cgroup / "devices.deny").exists():
            (self.cgroup / "devices.deny").write_text("a")
        (self.cgroup / "cgroup.procs").write_text(str(self.process.pid))
        state = {"ociVersion": "1.0.2", "id": "bench", "pid": self.process.pid, "bundle": str(self.bundle)}
        self.state.write_text(json.dumps(state, separators=(",", ":")))


def report(all_cases: list[Case]) -> None:
    median = {case.name: statistics.median(case.times) for case in all_cases}
    n, p = (median[case.name] for case in all_cases[:2])
    eight = median["create, `all` on 8 GPUs"]
    units = {"N": n, "P": p, "8-GPU create": eight}
    table = Table(title=f"{RUNS} runs, interleaved; Python {sys.version.split()[0]}")
    for column in ("", "min ms", "median ms", "max ms", "in units", "at most"):
        table.add_column(column, justify="left" if not column else "right")
    for case in all_cases:
        ratio = (median[case.name] - (units[case.less] if case.less else 0)) / units[case.unit]
        over = case.budget and ratio > float(case.budget)
        table.add_row(
            case.name,
            f"{min(case.times):.2f}",
            f"{median[case.name]:.2f}",
            f"{max(case.times):.2f}",
            f"{ratio:.2f} {case.unit}",
            f"[red]{case.budget}[/]" if over else case.budget,
        )
    Console(width=120).print(table)


def peak_memory(case: Case) -> float:
    """MiB that *case* had at most, as the program that it becomes tells."""
    case.before()
    # By a shell: a process starts with the peak of the one that started it, and ours is larger.
    argv = ["sh", "-c", '"$@"; exit $?', "sh", *case.argv]
    done = subprocess.run(argv, env={**case.env, "PEAK": "1"}, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout) / 1024


def hooks_injected(case: Case) -> int:
    bundle = Path(case.argv[case.argv.index("--bundle") + 1])
    return sum(
        len(stage) for stage in json.loads((bundle / "config.json").read_text()).get("hooks", {}).values()
    )


def main() -> None:
    captured = Path(__file__).parent.parent / "oci-fixtures/good/containerd-seed-pod/config.json"
    config = json.loads(captured.read_text())
    config["process"]["env"] = [e for e in config["process"]["env"] if not e.startswith("NVIDIA_")]
    null = os.open("/dev/null", os.O_RDWR)
    with tempfile.TemporaryDirectory() as directory:
        all_cases = cases(Path(directory), config)
        for case in all_cases:  # settings, node inventory and page cache warm
            case.run(null)
            case.times.clear()
        for _ in range(RUNS):
            for case in all_cases:
                case.run(null)
        for case in all_cases:
            case.after()
        report(all_cases)
        last = next(case for case in all_cases if "`all` on 8" in case.name)
        creates = [case for case in all_cases if case.name.startswith("create")]
        print(f"peak memory of a create: {max(map(peak_memory, creates)):.1f} MiB (at most 14)")
        print(
            f"config.json: {len(json.dumps(config)) / 1024:.0f} KiB; hooks injected: {hooks_injected(last)} (at most 0)"
        )


if __name__ == "__main__":
    main()
