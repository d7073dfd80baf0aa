"""The tables and pictures of a page in Markdown whose text is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from memplan.files import write_bytes
from memplan.plotting.save import save


class Page:
    """A page, and the pictures beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = path.read_text(encoding="utf-8").splitlines()

    def table(self, columns: str, rows: Sequence[Sequence[str]]) -> None:
        """Replace the page's table that has these columns, named with | between them.

        The first column is text, the others are numbers. Where the page has no such
        table, print it.
        """
        head = [name.strip() for name in columns.split("|")]
        rules = ["---", *["---:"] * (len(head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]
        if lines[0] not in self._lines:
            print(f"{self._path} has no such table:", *lines, sep="\n")
            return
        first = last = self._lines.index(lines[0])
        while last < len(self._lines) and self._lines[last].startswith("|"):
            last += 1
        self._lines[first:last] = lines

    def figure(self, name: str, drawn: Figure) -> None:
        """Write a picture as SVG."""
        save(drawn, self._path.with_name(f"blocking-{name}.svg"), force=True)

    def write(self) -> None:
        """Write the page with its new tables."""
        write_bytes(self._path, ("\n".join(self._lines) + "\n").encode())
