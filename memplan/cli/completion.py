"""memplan completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from memplan.cli.group import VARIABLE

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script for SHELL that completes commands, options and files.

    \b
    bash   in ~/.bashrc:  eval "$(memplan completion bash)"
    zsh    in ~/.zshrc:   eval "$(memplan completion zsh)"
    fish   memplan completion fish > ~/.config/fish/completions/memplan.fish

    \b
    Example: memplan completion bash
    """
    whole = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None  # click has these three
    click.echo(found(whole, {}, "memplan", VARIABLE).source())
