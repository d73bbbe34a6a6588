"""`gpushim devices`: what a running container can open, asked of its real cgroup."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from gpushim import settings
from gpushim.ctl import containers
from gpushim.ctl.container_devices import View, host_device
from gpushim.ctl.containers import Running
from gpushim.errors import UnknownContainer

SCHEMA = 1


@click.command()
@click.argument("container", required=False)
@click.option("--pid", type=int, help="A process of the container, instead of its id.")
@click.option("--cgroup", help="A device cgroup alone: its directory, or a path as in /proc/PID/cgroup.")
@click.option("--device", "devices", multiple=True, help="Also this device of the host: PATH, or PATH:rw.")
@click.option("--root", "roots", multiple=True, help="Where a runtime keeps its state (its --root).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document (docs/devices.md).")
def devices(
    container: str | None,
    pid: int | None,
    cgroup: str | None,
    devices: tuple[str, ...],
    roots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say of each NVIDIA device whether CONTAINER has it, and can open it.

    The cgroup itself is asked: the list of v1, and the BPF programs of v2 of the container and of every
    cgroup above it. Nothing is changed. Exit status 1 when something that was asked for cannot be opened.

    \b
    Examples:
      gpushim devices 3f2a1b
      gpushim devices --pid 4711 --device /dev/nvidia0
    """
    if sum(one is not None for one in (container, pid, cgroup)) != 1:
        raise click.UsageError("one of CONTAINER, --pid and --cgroup")
    environ = dict(os.environb)
    effective = settings.load(environ)
    running = _running(container, pid, roots or containers.ROOTS)
    view = View(running, effective, settings.state_dir(environ), cgroup or "")
    for one in devices:
        view.add(*host_device(one), "option")
    report = as_dict(view)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    sys.exit(1 if any(row["asked"] and row["opens"] is False for row in report["devices"]) else 0)


def _running(container: str | None, pid: int | None, roots: tuple[str, ...]) -> Running | None:
    if container is not None:
        return containers.find(container, roots)
    if pid is None:
        return None
    if not Path(f"/proc/{pid}").exists():
        raise UnknownContainer("GS0815", f"process {pid}: there is none")
    return containers.with_process(pid, roots) or Running("", pid, "", "")


def as_dict(view: View) -> dict[str, Any]:
    """The report as docs/devices.md describes it."""
    running, cgroup, user = view.running, view.cgroup, view.user
    return {
        "schema": SCHEMA,
        "container": running and {"id": running.id, "pid": running.pid, "bundle": running.bundle},
        "cgroup": {
            "v1": cgroup.v1 or None,
            "v2": cgroup.v2 or None,
            "programs": [
                {"id": one.id, "name": one.name, "cgroup": where, "readable": one.instructions is not None}
                for where, one in cgroup.programs
            ],
        },
        "user": user and {"uid": user.uid, "gid": user.gid, "groups": sorted(user.groups)},
        "devices": view.rows(),
        "warnings": view.warnings + cgroup.unread,
    }


def _print(report: dict[str, Any]) -> None:
    from gpushim.ctl.show import console, line, table, text

    out = console()
    container, cgroup = report["container"], report["cgroup"]
    if container:
        out.print(text(container["id"] or f"process {container['pid']}", "bold"))
    for name in ("v1", "v2"):
        if cgroup[name]:
            out.print(line(name, f"cgroup {cgroup[name]}"))
    rows = report["devices"]
    if rows:
        columns = ("device", "numbers", "asked", "node", "cgroup", "user", "opens", "because")
        quiet = {n for n, row in enumerate(rows) if not row["asked"]}
        out.print(table(columns, [_cells(row) for row in rows], quiet))
    else:
        out.print(line("devices", "none: the container has no NVIDIA node and asks for none"))
    for warning in report["warnings"]:
        out.print(line("warning", warning, style="bold yellow"))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    mode = "" if row["mode"] is None else f" {row['mode']:04o}"
    opens = {True: "yes", False: "lost" if row["lost"] else "no", None: "unknown"}[row["opens"]]
    return (
        row["path"],
        f"{row['major']}:{row['minor']}",
        row["asked"] or "",
        f"{row['node']}{mode}",
        _letters(row["cgroup"]),
        _letters(row["user"]),
        opens,
        row["denied_by"] if row["opens"] is not True and row["denied_by"] else "",
    )


def _letters(allowed: dict[str, bool | None]) -> str:
    """`rw-`: what is denied is a dash, and what is not known a question mark."""
    return "".join({True: letter, False: "-", None: "?"}[value] for letter, value in allowed.items())
