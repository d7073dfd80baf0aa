"""How commands talk to people: aligned, never truncated, nothing but text.

What a file or its name holds cannot write over a terminal: no control character and
no markup gets through.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from memplan.formats.plain import plain
from memplan.text import printable

_MOST_NAMES = 12  # of values, in a list
_NAMES = 17  # columns of a fact's name
_LEAST_FIRST, _LEAST_OTHER = 24, 12  # characters, of a column that is folded
_ENDS = "/._ "  # a line of a folded text ends with one of these
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


def listed(name: str, parts: Sequence[str]) -> list[tuple[str, str]]:
    """A fact of several parts, on as many lines as the terminal's width asks for."""
    lines, room = list(parts[:1]), width() - _NAMES
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > room:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] += f", {part}"
    return [(name if i == 0 else "", text) for i, text in enumerate(lines)]


def unkept(names: Sequence[str]) -> list[tuple[str, str]]:
    """The fact of which values a plan computes where they are used."""
    more = len(names) - _MOST_NAMES
    rest = [f"and {more:,} more"] if more > 0 else []
    return listed("not kept", [*names[:_MOST_NAMES], *rest])


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int = 1,
    err: bool = False,
) -> None:
    """A table: its first `texts` columns are text, to the left, numbers to the right.

    Where it is too wide, the text is folded, that of the first column last; no number
    ever is. A column's head may have several lines.
    """
    if _hushed:
        return
    grid = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(_longest, column)) for column in zip(*grid, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width(err)
    for i in (*range(1, texts), 0):
        cut = max(0, min(excess, widths[i] - (_LEAST_OTHER if i else _LEAST_FIRST)))
        widths[i], excess = widths[i] - cut, excess - cut
    if title:
        line(title, err)
    for k, row in enumerate(grid):
        cells = [_folded(cell, room) for cell, room in zip(row, widths, strict=True)]
        high = max(map(len, cells))
        for i, lines in enumerate(cells):
            blank = [""] * (high - len(lines))
            cells[i] = lines + blank if k else blank + lines  # heads stand below
        for parts in zip(*cells, strict=True):
            aligned = [
                f"{part:<{room}}" if i < texts else f"{part:>{room}}"
                for i, (part, room) in enumerate(zip(parts, widths, strict=True))
            ]
            line("  ".join(aligned).rstrip(), err)


def _longest(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _folded(text: str, room: int) -> list[str]:
    """Its lines, none longer than `room`: cut behind the last separator that fits, and
    within a word only where there is none."""
    found = []
    for rest in text.split("\n"):
        while len(rest) > room:
            at = _fold(rest, room)
            found.append(rest[:at].rstrip())
            rest = rest[at:].lstrip()  # noqa: PLW2901
        found.append(rest)
    return found


def _fold(text: str, room: int) -> int:
    """How much of it stands on the first line; a space does not count at its end."""
    indent = len(text) - len(text.lstrip())
    places = enumerate(text[: room + 1])
    ends = (i + (mark != " ") for i, mark in places if mark in _ENDS)
    return max((end for end in ends if indent < end <= room), default=room)


def width(err: bool = False) -> int:
    """Columns of the terminal, or of COLUMNS, or 120; no less than numbers need."""
    wide = 80 if (sys.stderr if err else sys.stdout).isatty() else 120
    return max(shutil.get_terminal_size((wide, 24)).columns, 80)


def as_json(entries: Mapping[str, object], schema: str = "") -> None:
    """One JSON object on standard output; schema: its name, unless it is in there."""
    head: dict[str, object] = {"schema": schema, "version": 1} if schema else {}
    click.echo(json.dumps(head | plain(entries), indent=2, sort_keys=True))


def picked(source: object, *names: str, **paths: str) -> dict[str, Any]:
    """Attributes of `source` as JSON has them: `names`, and those at dotted `paths`
    under names of their own."""
    where = {name: name for name in names} | paths
    return {name: plain(attrgetter(path)(source)) for name, path in where.items()}


def written(path: Path, what: str, words: str, json_: bool) -> None:
    """That a file was written, as JSON or in `words`; what: the kind of file it is."""
    if not json_:
        note(words)
        return
    size = path.stat().st_size if path.is_file() else None  # of standard output, none
    as_json({"output": path, "bytes": size, "kind": what}, "memplan.written")


def note(text: str) -> None:
    """One line to the person, beside the program's own output."""
    line(f"memplan: {text}", err=True)


def _unheard(err: bool) -> contextlib.AbstractContextManager[None]:
    """Nobody may be listening on standard error; the work is done all the same."""
    return contextlib.suppress(OSError) if err else contextlib.nullcontext()
