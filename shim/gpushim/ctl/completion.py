"""`gpushim completion`: what a shell needs to complete our command lines."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Example:
      gpushim completion bash > /etc/bash_completion.d/gpushim
    """
    script = get_completion_class(shell)
    assert script is not None  # the choices are click's own
    click.echo(script(ctx.find_root().command, {}, "gpushim", "_GPUSHIM_COMPLETE").source())
