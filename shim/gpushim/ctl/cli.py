"""The `gpushim` command."""

import importlib
import os
import sys
from typing import NoReturn

import click

from gpushim import __version__
from gpushim.errors import ShimError, in_words
from gpushim.log import printable

# Name → module and attribute: a command loads what it needs and nothing of the others.
COMMANDS = {
    "completion": ("gpushim.ctl.completion", "completion"),
    "config": ("gpushim.ctl.config", "config"),
    "devices": ("gpushim.ctl.devices", "devices"),
    "explain": ("gpushim.ctl.explain", "explain"),
    "hook": ("gpushim.ctl.hook", "hook"),
    "node": ("gpushim.ctl.node", "command"),
}


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpushim")
def gpushim() -> None:
    """NVIDIA GPUs for containers: see what a container asks for, what it gets, and why.

    Exit status: 0 fine, 1 a problem was found or a request refused, 2 wrong usage.
    """


def main() -> NoReturn:
    """The console script; every error that a user can cause ends here as a line."""
    try:
        gpushim(prog_name="gpushim")
    except BrokenPipeError:
        # Whoever read our output had enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ShimError, OSError) as problem:
        print(f"gpushim: {printable(in_words(problem))}", file=sys.stderr)
    sys.exit(1)
