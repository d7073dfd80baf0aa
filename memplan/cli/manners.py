"""What every command understands, after its name or before: `-q` and `-v`."""

from __future__ import annotations

import time

import click

from memplan.cli import show

VARIABLE = "_MEMPLAN_COMPLETE"  # what a shell sets when it asks how a line goes on


def teach(command: click.Command) -> None:
    """Give `command` the options that it does not have by itself; once."""
    known = {name for param in command.params for name in param.opts}
    for option in (_QUIET, _VERBOSE):
        if not known & {*option.opts}:
            command.params.append(option)


def _hush(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.with_resource(show.hushed())


def _measure(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Say what it took when the command ends, however it does."""
    if not value:
        return
    begun = time.perf_counter()

    def tell() -> None:
        from memplan.recording.resident import peak_resident_bytes
        from memplan.units import format_bytes, format_seconds

        took = format_seconds(time.perf_counter() - begun)
        most = format_bytes(peak_resident_bytes())
        show.complaint(f"took {took}, and {most} of memory at its most")

    ctx.call_on_close(tell)


_QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_hush,
    help="Say nothing when all goes well, but for what --json prints.",
)
_VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    expose_value=False,
    callback=_measure,
    help="Say at the end what it took, in time and memory.",
)
