"""A page of text, tables and figures, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from memplan.files import write_bytes
from memplan.plotting.save import save


class Page:
    """The page, written from the top down, and its figures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []

    def say(self, text: str) -> None:
        """A paragraph, or a heading; nothing where it is empty."""
        self._lines += [text, ""] if text else []

    def table(self, columns: str, rows: Sequence[Sequence[str]]) -> None:
        """A table, its columns' names given with | between them; the first is text,
        the others are numbers."""
        head = [name.strip() for name in columns.split("|")]
        rules = ["---", *["---:"] * (len(head) - 1)]
        self._lines += [f"| {' | '.join(row)} |" for row in (head, rules, *rows)] + [""]

    def figure(self, name: str, drawn: Figure, caption: str) -> None:
        """A figure, as SVG beside the page."""
        save(drawn, self._folder / f"blocking-{name}.svg", force=True)
        self.say(f"![{caption}](blocking-{name}.svg)")

    def write(self) -> None:
        """The page itself."""
        text = "\n".join(self._lines).rstrip() + "\n"
        write_bytes(self._folder / "blocking.md", text.encode())
