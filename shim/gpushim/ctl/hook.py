"""`gpushim hook`: the hooks.d file by which podman and CRI-O start gpushim-hook.

Source: oci-hooks(5) of containers/common, version 1.0.0. It can match annotations, commands and bind mounts,
and not the environment by which most containers ask: so every container matches, and the launcher answers at
once for those that ask for nothing (cffi_src/hook.c).
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gpushim import files
from gpushim.errors import Conflict

NAME = "50-gpushim.json"

# Where each engine looks without being told to; an administrator's own directory first, where there is one.
DIRECTORIES = {"podman": "/etc/containers/oci/hooks.d", "crio": "/usr/share/containers/oci/hooks.d"}

# The hook's name for each stage, as the runtime-spec names the stage.
STAGES = {"createRuntime": "create-runtime", "createContainer": "create-container"}

_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


@click.group()
def hook() -> None:
    """The hooks.d file for podman and CRI-O, where no runtime handler can be set."""


def _options(command: Any) -> Any:
    for option in (
        click.argument("engine", type=click.Choice(sorted(DIRECTORIES))),
        click.option("--directory", help="The hooks.d directory, where it is not the engine's usual one."),
    ):
        command = option(command)
    return command


def _content(command: Any) -> Any:
    for option in (
        click.option(
            "--rootless",
            is_flag=True,
            help="For engines that run without root: a createContainer hook, which binds the host's nodes.",
        ),
        click.option("--config", help="The config.toml that the hook reads, instead of the usual places."),
        click.option("--state", help="The hook's state directory, instead of /run/gpushim."),
        click.option(
            "--annotation",
            "annotations",
            multiple=True,
            metavar="KEY=VALUE",
            help="Match only containers with such an annotation; both are regular expressions.",
        ),
    ):
        command = option(command)
    return command


@hook.command("print")
@_options
@_content
def show(engine: str, directory: str | None, **content: Any) -> None:
    """Print the file and do nothing."""
    click.echo(_text(**content), nl=False)


@hook.command()
@_options
@_content
def install(engine: str, directory: str | None, **content: Any) -> None:
    """Write the file to where ENGINE looks for hooks; a second time changes nothing.

    \b
    Example:
      gpushim hook install podman
    """
    path = _path(engine, directory)
    text = _text(**content)
    there = _read(path)
    if there == text:
        click.echo(f"{path}: is as it should be")
        return
    _check_ours(path, there)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(str(path), text.encode(), 0o644)
    click.echo(f"{path}: written: {engine} reads it at the next container")
    for other in sorted(path.parent.glob("*.json")):
        if other != path and "nvidia-container" in (_read(other) or ""):
            click.echo(
                f"warning: {other} starts NVIDIA's hook too: a container would be given its devices twice",
                err=True,
            )


@hook.command()
@_options
def remove(engine: str, directory: str | None) -> None:
    """Take the file away again; one that is not ours stays."""
    path = _path(engine, directory)
    there = _read(path)
    if there is None:
        click.echo(f"{path}: is not there")
        return
    _check_ours(path, there)
    path.unlink()
    click.echo(f"{path}: removed")


def _path(engine: str, directory: str | None) -> Path:
    return Path(directory or DIRECTORIES[engine], NAME)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None


def _check_ours(path: Path, text: str | None) -> None:
    if text is not None and "gpushim-hook" not in text:
        raise Conflict(
            "GS0820", f"{path}: is not of gpushim: it stays as it is", hint="move it away, or --directory"
        )


def _text(rootless: bool, config: str | None, state: str | None, annotations: tuple[str, ...]) -> str:
    stage = "createContainer" if rootless else "createRuntime"
    options = [
        word for name, value in (("--config", config), ("--state", state)) if value for word in (name, value)
    ]
    program = Path(sys.executable).parent / "gpushim-hook"
    when: dict[str, Any] = {"always": True}
    if annotations:
        pairs = [one.partition("=") for one in annotations]
        when = {"annotations": {key: value or ".*" for key, _, value in pairs}}
    content = {
        "version": "1.0.0",
        "hook": {
            "path": str(program),
            "args": ["gpushim-hook", *options, STAGES[stage]],
            # Not empty: engines drop an empty list, and the runtime's own environment would count then.
            "env": [_PATH],
        },
        "when": when,
        "stages": [stage],
    }
    return json.dumps(content, indent=2) + "\n"
