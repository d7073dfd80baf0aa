"""How commands talk to people: aligned, never truncated, nothing but text.

What a file or its name holds cannot write over a terminal: no control character and
no markup gets through.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import click

from memplan.text import printable


def line(text: str, err: bool = False) -> None:
    """One line."""
    with _unheard(err):
        click.echo(printable(text), err=err)


def facts(title: str, rows: Iterable[tuple[str, str]], err: bool = False) -> None:
    """A title line, and below it names and values in two columns."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    lines = [title, *(f"  {name:<{width}}  {value}" for name, value in listed)]
    with _unheard(err):
        click.echo("\n".join(map(printable, lines)), err=err)


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
        drawn.add_row(*map(printable, row))
    console = Console(
        file=stream,
        width=None if stream.isatty() else 120,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with _unheard(err):
        console.print(drawn)


def listing(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int
) -> None:
    """A table on standard output whose first `texts` columns are text, to the left.

    They are folded where it is too wide, so that no number is cut.
    """
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    rows = [[printable(cell) for cell in row] for row in rows]
    for i, column in enumerate(columns):
        if i < texts:
            longest = max([len(column), *(len(row[i]) for row in rows)])
            least = min(longest, 34 if i == 0 else 12)
            drawn.add_column(column, overflow="fold", min_width=least)
        else:
            drawn.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    console = Console(
        width=None if sys.stdout.isatty() else _piped_width(),
        highlight=False,
        markup=False,
        emoji=False,
        file=sys.stdout,
    )
    line(title)
    console.print(drawn)


def _piped_width() -> int:
    """Where nothing says how wide it is."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() else 120


def as_json(entries: dict[str, object]) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(entries, indent=2, sort_keys=True))


def note(text: str) -> None:
    """One line to the person, beside the program's own output."""
    line(f"memplan: {text}", err=True)


def _unheard(err: bool) -> contextlib.AbstractContextManager[None]:
    """Nobody may be listening on standard error; the work is done all the same."""
    return contextlib.suppress(OSError) if err else contextlib.nullcontext()


def file_size(path: Path) -> str:
    """The size of a file, for people."""
    from memplan.units import format_bytes

    return format_bytes(path.stat().st_size)
