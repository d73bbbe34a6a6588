"""`gpushim config`: the settings in effect."""

import json
import os

import click

from gpushim import settings, settings_file

SCHEMA = 1


@click.group()
def config() -> None:
    """Show the settings of this node."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document (docs/settings.md).")
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
def show(as_json: bool, changed: bool) -> None:
    """Print every effective setting with its value and where it comes from.

    \b
    Example:
      gpushim config show --changed
    """
    selected = settings.select(dict(os.environb))
    found = settings_file.effective(selected.path, selected.variable)
    keys = [key for key in found.values if not changed or found.sources[key] != "default"]
    if as_json:
        click.echo(json.dumps(_as_dict(found, keys), indent=2))
    else:
        _print(found, keys)


def _as_dict(found: settings_file.Effective, keys: list[str]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "file": found.path or None,
        "settings": {key: {"value": found.values[key], "source": found.sources[key]} for key in keys},
        "warnings": found.warnings,
    }


def _print(found: settings_file.Effective, keys: list[str]) -> None:
    from gpushim.ctl.show import console, line, table, text

    out = console()
    rows = [(key, json.dumps(found.values[key]), found.sources[key]) for key in keys]
    dim = {n for n, row in enumerate(rows) if row[2] == "default"}
    out.print(text(found.path or "no config.toml: the defaults are in effect", "bold"))
    out.print(table(("setting", "value", "from"), rows, dim))
    for warning in found.warnings:
        out.print(line("warning", warning, style="bold yellow"))
