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
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False)
    table = Table(box=SIMPLE, padding=(0, 1), header_style="bold")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for key in keys:
        style = "dim" if found.sources[key] == "default" else ""
        value = json.dumps(found.values[key])
        table.add_row(Text(key), Text(value), Text(found.sources[key]), style=style)
    out.print(Text(found.path or "no config.toml: the defaults are in effect"), table)
    for text in found.warnings:
        out.print(Text.assemble(("warning  ", "bold yellow"), text))
