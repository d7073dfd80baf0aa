"""How commands talk to people: aligned, never truncated, nothing but text.

What a file or its name holds cannot write over a terminal: no control character and
no markup gets through.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import click

from memplan.text import printable

_LEAST_FIRST, _LEAST_OTHER = 24, 12  # characters, of a column that is folded
_hushed: list[bool] = []  # one for every command that runs and was told to be quiet


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Until it ends only complaints, faults and JSON are shown."""
    _hushed.append(True)
    try:
        yield
    finally:
        _hushed.pop()


def is_hushed() -> bool:
    """Whether notes and results are not shown, and need not be made."""
    return bool(_hushed)


def line(text: str, err: bool = False) -> None:
    """One line."""
    if not _hushed:
        _written(text, err)


def complaint(text: str) -> None:
    """One line that everybody is told: what went wrong, must be warned of, or was
    asked for besides."""
    _written(f"memplan: {text}", err=True)


def fault(text: str) -> None:
    """One line of a check's result, which everybody is told."""
    _written(text, err=False)


def _written(text: str, err: bool) -> None:
    with _unheard(err):
        click.echo(printable(text), err=err)


def facts(title: str, rows: Iterable[tuple[str, str]], err: bool = False) -> None:
    """A title line, and below it names and values in two columns."""
    listed = list(rows)
    if _hushed:
        return
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

    if _hushed:
        return
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

    They are folded where it is too wide, the first one last; no number ever is.
    """
    grid = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - _width()
    for i in (*range(1, texts), 0):
        cut = max(0, min(excess, widths[i] - (_LEAST_OTHER if i else _LEAST_FIRST)))
        widths[i], excess = widths[i] - cut, excess - cut
    line(title)
    for row in grid:
        folded = [
            [cell[k : k + width] for k in range(0, len(cell), width)]
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            cells = [
                f"{part:<{width}}" if i < texts else f"{part:>{width}}"
                for i, (part, width) in enumerate(zip(parts, widths, strict=True))
            ]
            line("  ".join(cells).rstrip())


def _width() -> int:
    """Columns of the terminal, or of COLUMNS, or 120; no less than numbers need."""
    import shutil

    wide = 120 if not sys.stdout.isatty() else 80
    return max(shutil.get_terminal_size((wide, 24)).columns, 80)


def as_json(entries: dict[str, object]) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(entries, indent=2, sort_keys=True))


def written(path: Path, what: str, words: str, json_: bool) -> None:
    """That a file was written, as JSON or in `words`; what: the kind of file it is."""
    if not json_:
        note(words)
        return
    size = path.stat().st_size if path.is_file() else None  # of standard output, none
    entries: dict[str, object] = {"schema": "memplan.written", "version": 1}
    as_json({**entries, "output": str(path), "bytes": size, "kind": what})


def note(text: str) -> None:
    """One line to the person, beside the program's own output."""
    line(f"memplan: {text}", err=True)


def _unheard(err: bool) -> contextlib.AbstractContextManager[None]:
    """Nobody may be listening on standard error; the work is done all the same."""
    return contextlib.suppress(OSError) if err else contextlib.nullcontext()


def file_size(path: Path) -> str:
    """The size of a file, for people."""
    return size_of(path.stat().st_size)


def size_of(count: int) -> str:
    """So many bytes, for people."""
    from memplan.units import format_bytes

    return format_bytes(count)
