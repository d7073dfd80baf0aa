"""A click group that imports a command's module on first use, and options for all."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from memplan.cli import show

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_MEMPLAN_COMPLETE"  # set by a shell that asks for completions


class LazyGroup(click.Group):
    """Commands live in `<package>.<name>`, each as a function named `command`.

    Help and completion list them from `commands_help`, without imports. The group and
    its commands have `-q` and `-v`.
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
        _add_options(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        _add_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named first; for an unknown name, an error with similar ones."""
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
        """Commands with their help, and the group's own options."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, text in self._help.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


def _add_options(command: click.Command) -> None:
    """Add `-q` and `-v` unless `command` has them."""
    known = {name for param in command.params for name in param.opts}
    for option in (_QUIET, _VERBOSE):
        if not known & {*option.opts}:
            command.params.append(option)


def _hush(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.with_resource(show.hushed())


def _measure(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print time and memory when the command ends, also on an error."""
    if not value:
        return
    start = time.perf_counter()

    def report() -> None:
        from memplan.recording.usage import peak_resident_bytes
        from memplan.units import format_bytes, format_seconds

        took = format_seconds(time.perf_counter() - start)
        most = format_bytes(peak_resident_bytes())
        show.complaint(f"took {took}, peak memory {most}")

    ctx.call_on_close(report)


_QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_hush,
    help="Print only errors, warnings and --json output.",
)
_VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    expose_value=False,
    callback=_measure,
    help="Print time and peak memory at the end.",
)
