"""`gpushim node`: this host's GPUs, MIG instances and capabilities, as the kernel tells them."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from gpushim import node, settings
from gpushim.errors import InvalidNode
from gpushim.node import Capability, Gpu, Node
from gpushim.selection import Device

SCHEMA = 1


@click.group("node", invoke_without_command=True)
@click.option("--nvml", is_flag=True, help="Ask NVML too, which initialises the driver, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document (docs/node.md).")
@click.pass_context
def command(ctx: click.Context, nvml: bool, as_json: bool) -> None:
    """Show this host's GPUs and MIG instances, and the device node of each.

    No driver is initialised. Exit status 1 when there is no driver, or something is wrong with a node.
    """
    if ctx.invoked_subcommand is not None:
        return
    effective, found = _read()
    report = as_dict(found, effective["gpushim.roots.proc"])
    if nvml:
        from gpushim.ctl import nvml_view

        report["nvml"] = nvml_view.ask(effective)
        report["problems"] += nvml_view.differences(report)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    sys.exit(1 if found is None or report["problems"] else 0)


@command.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document (docs/node.md).")
def prepare(dry_run: bool, as_json: bool) -> None:
    """Load nvidia-uvm, make the device nodes that are missing or stale, and their links in /dev/char.

    Says what it did; what is right stays as it is. Exit status 1 when something was left as it was.

    \b
    Example:
      gpushim node prepare --dry-run
    """
    from gpushim.ctl import prepare as work

    _, found = _read()
    if found is None:
        raise InvalidNode("GS0801", "no NVIDIA driver is loaded", hint="load it: modprobe nvidia")
    steps = work.prepare(found, dry_run=dry_run)
    if as_json:
        click.echo(
            json.dumps({"schema": SCHEMA, "dry_run": dry_run, "steps": [one._asdict() for one in steps]})
        )
    else:
        from gpushim.ctl.show import console, line

        for one in steps or [work.Step("nothing", "", "to do: every node is as the driver wants it")]:
            console().print(line(one.what, f"{one.path} {one.detail}".strip()))
    sys.exit(1 if any(one.what == "left" for one in steps) else 0)


def _read() -> tuple[dict[str, Any], Node | None]:
    environ = dict(os.environb)
    effective = settings.load(environ)
    found = node.read_node(effective, settings.state_dir(environ), patient=True)
    if found is not None:
        node.read_capabilities(found, management=True)
    return effective, found


def as_dict(found: Node | None, proc: str) -> dict[str, Any]:
    """The report as docs/node.md describes it."""
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "driver": driver_version(proc),
        "majors": {},
        "nodes": [],
        "capabilities": [],
        "gpus": [],
        "problems": [],
    }
    if found is None:
        report["problems"].append("no NVIDIA driver is loaded")
        return report
    report["majors"] = found.majors
    look = _Looked(found, report["problems"])
    major = found.gpu_major() or 0
    modeset = found.majors.get("nvidia-modeset")
    uvm = found.majors.get("nvidia-uvm")
    for name, number, minor in (
        ("nvidiactl", found.majors.get("nvidiactl", major), 255),
        ("nvidia-modeset", modeset, 254),
        ("nvidia-uvm", uvm, 0),
        ("nvidia-uvm-tools", uvm, 1),
    ):
        if number is not None:
            report["nodes"].append(look.at(f"/dev/{name}", number, minor))
    for name, capability in (("mig/config", found.config), ("mig/monitor", found.monitor)):
        if capability is not None:
            report["capabilities"].append({"name": name, **look.capability(capability)})
    report["gpus"] = [_gpu(gpu, major, look) for gpu in found.gpus]
    return report


def driver_version(proc: str) -> str | None:
    """The driver's version, from the NVRM line of /proc/driver/nvidia/version; GCC's line has numbers too."""
    try:
        text = Path(proc, "driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line + " ")
            return match.group(1) if match else None
    return None


class _Looked:
    """Looks at the host's node for each device, and collects what is wrong with them."""

    def __init__(self, found: Node, problems: list[str]) -> None:
        self._node = found
        self._problems = problems

    def at(self, path: str, major: int, minor: int) -> dict[str, Any]:
        device = Device(path, major, minor, "", "")
        node.look_up(self._node, [device])
        state = "present"
        if device.host is None:
            state = "missing"
        elif device.host != (major, minor):
            state = f"is {device.host[0]}:{device.host[1]}"
        if state != "present":
            self._problems.append(f"{path} ({major}:{minor}): {state}")
        mode = f"{device.mode:04o}" if device.host else None
        return {"path": path, "major": major, "minor": minor, "mode": mode, "host": state}

    def capability(self, capability: Capability | None) -> dict[str, Any]:
        major = self._node.majors.get("nvidia-caps")
        if capability is None or capability.fault or major is None:
            fault = capability.fault if capability else "has no access file"
            fault = fault or "nvidia-caps has no major number"
            self._problems.append(f"a capability {fault}")
            return {"fault": fault}
        path = f"/dev/nvidia-caps/nvidia-cap{capability.minor}"
        return self.at(path, major, capability.minor)


def _gpu(gpu: Gpu, major: int, look: _Looked) -> dict[str, Any]:
    out: dict[str, Any] = {
        "index": gpu.index,
        "bus": gpu.bus,
        "uuid": gpu.uuid or None,
        "model": gpu.model or None,
        "fault": gpu.fault or None,
        "node": None,
        "instances": [],
    }
    if gpu.fault:
        look._problems.append(f"GPU {gpu.index} ({gpu.bus}): {gpu.fault}")
        return out
    out["node"] = look.at(f"/dev/nvidia{gpu.minor}", major, gpu.minor)
    for gi, instance in sorted(gpu.instances.items()):
        computes = [
            {"id": ci, **look.capability(capability)} for ci, capability in sorted(instance.computes.items())
        ]
        out["instances"].append({"id": gi, **look.capability(instance.access), "compute_instances": computes})
    return out


def _print(report: dict[str, Any]) -> None:
    from rich.tree import Tree

    from gpushim.ctl.show import console, line, text

    out = console()
    tree = Tree(line("driver", report["driver"] or "not loaded"))
    if report["nodes"]:
        control = tree.add("control nodes")
        for one in report["nodes"]:
            control.add(_node(one))
    if report["capabilities"]:
        capabilities = tree.add("capabilities")
        for one in report["capabilities"]:
            capabilities.add(text(f"{one['name']}  ") + _node(one))
    for gpu in report["gpus"]:
        title = text(f"GPU {gpu['index']} ", "bold") + text(gpu["model"] or "", "not bold")
        title += text(f" {gpu['bus']} {gpu['uuid'] or 'no UUID yet'}", "dim not bold")
        title += text(f"  {gpu['fault']}" if gpu["fault"] else "", "red not bold")
        branch = tree.add(title)
        if gpu["node"]:
            branch.add(_node(gpu["node"]))
        for instance in gpu["instances"]:
            leaf = branch.add(text(f"GPU instance {instance['id']}  ") + _node(instance))
            for compute in instance["compute_instances"]:
                leaf.add(text(f"compute instance {compute['id']}  ") + _node(compute))
    out.print(tree)
    if report.get("nvml"):
        _print_nvml(out, report["nvml"])
    for problem in report["problems"]:
        out.print(line("problem", problem, style="bold yellow"))


def _print_nvml(out: Any, nvml: dict[str, Any]) -> None:
    from gpushim.ctl.show import table

    rows = []
    for gpu in nvml["gpus"]:
        rows.append((f"{gpu['index']}", gpu["name"], gpu["uuid"], _mib(gpu["memory"])))
        for mig in gpu["migs"]:
            place = f"{gpu['index']}:{mig['index']}"
            instance = f"{mig['name']} (instance {mig['gi']}, compute {mig['ci']})"
            rows.append((place, instance, mig["uuid"], _mib(mig["memory"])))
    out.print(table(("NVML", "name", "UUID", "memory"), rows))


def _mib(memory: int | None) -> str:
    return "not permitted" if memory is None else f"{memory >> 20} MiB"


def _node(one: dict[str, Any]) -> Any:
    from gpushim.ctl.show import text

    if "path" not in one:
        return text(one["fault"], "red")
    state = text(one["mode"], "green") if one["host"] == "present" else text(one["host"], "red")
    return text(f"{one['path']} ") + text(f"{one['major']}:{one['minor']} ", "dim") + state
