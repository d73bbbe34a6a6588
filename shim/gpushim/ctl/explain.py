"""`gpushim explain`: what the shim would do with a bundle, and why."""

import json
import os
import sys
from typing import Any

import click

from gpushim import bundle, settings
from gpushim.edits import AddDevice, AddGroup, AddMount, AllowDevice, Annotate, RemoveHook
from gpushim.errors import ShimError
from gpushim.resolution import Resolution, resolve

SCHEMA = 1

# What each edit is called in JSON, and which of its fields stand there.
_EDITS: dict[type, tuple[str, tuple[str, ...]]] = {
    AddDevice: ("device", ("path", "major", "minor", "mode", "uid", "gid")),
    AllowDevice: ("rule", ("major", "minor", "access")),
    AddMount: ("mount", ("source", "destination", "options")),
    AddGroup: ("group", ("gid",)),
    RemoveHook: ("remove-hook", ("stage", "path")),
    Annotate: ("annotation", ("value",)),
}


@click.command()
@click.argument("directory", metavar="BUNDLE", type=click.Path(exists=True, file_okay=False))
@click.option("--config", "name", default="config.json", help="Name of the config in the bundle.")
@click.option("--runtime", default="runc", help="The low-level runtime that will run it.")
@click.option("--handler", default="gpushim-runtime", help="The name under which the engine calls the shim.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document (docs/explain.md).")
def explain(directory: str, name: str, runtime: str, handler: str, as_json: bool) -> None:
    """Say what BUNDLE's container asks for, what policy says, and each edit with its reason.

    Nothing is changed. Exit status 1 when the container would be refused.

    \b
    Example:
      gpushim explain /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID
    """
    environ = dict(os.environb)
    found = bundle.open_bundle(directory, name)
    effective = settings.load(environ)
    resolution, problem = Resolution(), None
    try:
        state_dir = settings.state_dir(environ)
        resolve(found.config, effective, runtime, state_dir, resolution, handler=handler)
    except ShimError as raised:
        problem = raised
    report = as_dict(found.path, resolution, problem)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    sys.exit(1 if problem else 0)


def as_dict(path: str, resolution: Resolution, problem: ShimError | None) -> dict[str, Any]:
    """The report as docs/explain.md describes it."""
    request, selection = resolution.request, resolution.selection
    return {
        "schema": SCHEMA,
        "config": path,
        "asked": request
        and {
            "source": request.source,
            "value": request.words,
            "devices": list(request.devices),
            "driver_capabilities": list(request.capabilities),
            "extras": request.extras,
            "management": list(request.management),
            "imex_channels": list(request.imex),
        },
        "policy": [
            {
                "kind": verdict.kind,
                "variable": verdict.variable,
                "granted": verdict.granted,
                "decided_by": verdict.setting,
                "missing": verdict.missing,
            }
            for verdict in resolution.verdicts
        ],
        "edits": [_edit(edit) for edit in resolution.edits],
        "root": resolution.work
        and {
            "links": [{"path": path, "target": target} for path, target in resolution.work.links],
            "loader": [{"soname": soname, "path": path} for soname, path, _ in resolution.work.libraries],
        },
        "withheld": [{"what": what, "why": why} for what, why in (selection.withheld if selection else ())],
        "warnings": resolution.warnings,
        "error": problem and {"id": problem.id, "message": problem.args[0], "hint": problem.hint},
    }


def _edit(edit: Any) -> dict[str, Any]:
    name, fields = _EDITS[type(edit)]
    values = {field: getattr(edit, field) for field in fields}
    return {"edit": name, **values, "text": edit.describe(), "why": edit.why}


def _print(report: dict[str, Any]) -> None:
    from gpushim.ctl.show import console, line, table, text

    out = console()
    out.print(text(report["config"], "bold"))
    _print_asked(out, report["asked"])
    for verdict in report["policy"]:
        word = text("granted", "green") if verdict["granted"] else text("refused", "red")
        missing = f": {verdict['missing']}" if verdict["missing"] else ""
        by = text(f"  {verdict['decided_by']}", "dim")
        out.print(line("policy", f"{verdict['variable']} ", word, missing, by))
    if report["error"]:
        error = report["error"]
        out.print(line("refused", f"{error['id']}: {error['message']}", style="bold red"))
        if error["hint"]:
            out.print(line("", text(f"hint: {error['hint']}", "dim")))
        return
    if report["edits"]:
        out.print(table(("device", "numbers", "node", "rule", "because"), _devices(report["edits"])))
        files = [(e["destination"], e["why"]) for e in report["edits"] if e["edit"] == "mount"]
        if files:
            out.print(table(("mounted", "because"), files))
        rows = [
            (e["text"], e["why"]) for e in report["edits"] if e["edit"] not in ("device", "rule", "mount")
        ]
        if rows:
            out.print(table(("also", "because"), rows))
    else:
        out.print(line("given", "nothing: config.json stays as it is, byte for byte"))
    if report["root"]:
        count = len(report["root"]["links"])
        named = ", ".join([one["soname"] for one in report["root"]["loader"]])
        out.print(line("root", f"{count} links, and the loader's cache lists {named}"))
    if report["withheld"]:
        rows = [(item["what"], item["why"]) for item in report["withheld"]]
        out.print(table(("not given", "because"), rows))
    for warning in report["warnings"]:
        out.print(line("warning", warning, style="bold yellow"))


def _devices(edits: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each device, whether it lacked its node, its rule or both."""
    rows: dict[tuple[int, int | None], dict[str, str]] = {}
    for edit in edits:
        if edit["edit"] not in ("device", "rule"):
            continue
        row = rows.setdefault((edit["major"], edit["minor"]), {"path": "", "node": "", "rule": ""})
        row["why"] = edit["why"]
        if edit["edit"] == "device":
            row["path"], row["node"] = edit["path"], f"{edit['mode']:04o}"
        else:
            row["rule"] = edit["access"]
    return [
        (row["path"], f"{major}:{'*' if minor is None else minor}", row["node"], row["rule"], row["why"])
        for (major, minor), row in rows.items()
    ]


def _print_asked(out: Any, asked: dict[str, Any] | None) -> None:
    from gpushim.ctl.show import line

    if asked is None:
        out.print(line("asks", "for no GPU"))
        return
    out.print(line("asks", f"{asked['source']} = {asked['value']}"))
    for kind, words in asked["extras"].items():
        out.print(line("", f"{words} ({kind})"))
    out.print(line("", f"driver capabilities {','.join(asked['driver_capabilities'])}"))
