"""`gpushim config`: the settings in effect, and changes to config.toml that keep its comments."""

import json
import os
import sys

import click

from gpushim import settings, settings_file

SCHEMA = 1


@click.group()
def config() -> None:
    """Show, change and check the settings of this node."""


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


@config.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--config", "path", help="The file to change; default: the one in effect.")
def set_(key: str, value: str, path: str | None) -> None:
    """Set KEY to VALUE in config.toml; comments and everything else stay.

    VALUE is TOML (true, 5, ["a", "b"]) or else a text. A file that would not be accepted is not written.

    \b
    Examples:
      gpushim config set gpushim.policy.mig-monitor allow
      gpushim config set accept-nvidia-visible-devices-as-volume-mounts false
      gpushim config set accept-nvidia-visible-devices-envvar-when-unprivileged true
    """
    from gpushim.ctl.config_file import ConfigFile

    file = ConfigFile(path)
    file.set(key, value)
    file.write()
    click.echo(f"{file.path}: {key} = {file.shown(key)}")


@config.command()
@click.argument("key")
@click.option("--config", "path", help="The file to change; default: the one in effect.")
def unset(key: str, path: str | None) -> None:
    """Take KEY out of config.toml, so that its default holds.

    \b
    Example:
      gpushim config unset gpushim.policy.mig-monitor
    """
    from gpushim.ctl.config_file import ConfigFile

    file = ConfigFile(path)
    file.unset(key)
    file.write()
    click.echo(f"{file.path}: without {key}")


@config.command()
@click.argument("path", required=False)
def check(path: str | None) -> None:
    """Check config.toml, or the file PATH: exit status 1 for what is wrong, and for keys that mean nothing.

    \b
    Example:
      gpushim config check /etc/nvidia-container-runtime/config.toml
    """
    selected = settings.select(dict(os.environb))
    found = settings_file.effective(path or selected.path, "" if path else selected.variable)
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    if found.warnings:
        sys.exit(1)
    click.echo(f"{found.path or 'no config.toml'}: is fine")


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
