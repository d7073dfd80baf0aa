"""A click group that imports a command's module when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands live in `<package>.<name>`, each as a function named `command`.

    The help text lists them from `commands_help`, without importing any.
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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))
