"""How commands talk to people: on standard error, aligned, never truncated."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import click


def facts(title: str, rows: Iterable[tuple[str, str]], err: bool = False) -> None:
    """A title line, and below it names and values in two columns."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    lines = [f"  {name:<{width}}  {value}" for name, value in listed]
    with _unheard(err):
        click.echo("\n".join([title, *lines]), err=err)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], err: bool = True
) -> None:
    """A table: the first column's text to the left, numbers to the right.

    Where it is too wide, the first column is folded, so that no number is cut.
    """
    from rich.console import Console
    from rich.table import Table

    stream = sys.stderr if err else sys.stdout
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if i else "left"
        drawn.add_column(column, justify=justify, no_wrap=i > 0, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    width = None if stream.isatty() else 120
    with _unheard(err):
        Console(file=stream, width=width, highlight=False, markup=False).print(drawn)


def as_json(entries: dict[str, object]) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(entries, indent=2, sort_keys=True))


def note(text: str) -> None:
    """One line to the person, beside the program's own output."""
    with _unheard():
        click.echo(f"memplan: {text}", err=True)


def _unheard(err: bool = True) -> contextlib.AbstractContextManager[None]:
    """Nobody may be listening on standard error; the work is done all the same."""
    return contextlib.suppress(OSError) if err else contextlib.nullcontext()


def file_size(path: Path) -> str:
    """The size of a file, for people."""
    from memplan.units import format_bytes

    return format_bytes(path.stat().st_size)
