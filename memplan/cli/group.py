"""A click group that imports a command's module when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from memplan.cli import manners

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Commands live in `<package>.<name>`, each as a function named `command`.

    The help text and completion list them from `commands_help`, without importing any.
    It and they have the options of `manners`.
    """

    def __init__(
        self,
        *args: Any,
        commands_help: dict[str, str],
        package: str = "memplan.cli",
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._help, self._package = commands_help, package
        manners.teach(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        manners.teach(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named first; of one that is not there, what may be meant."""
        if args and args[0] not in self._help and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self._help, n=3, cutoff=0.55)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Commands and their help, and the group's own options."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, text in self._help.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]
