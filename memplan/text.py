"""Text from files and file names, made fit for a terminal, a picture or a page."""

from __future__ import annotations

import os
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""`text` on one line: what is not printable stands as its escape, as ``\x1b``.

    That is line breaks, control characters, what turns the direction of writing
    around, and bytes of a file name that are no text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def name_as_text(name: str) -> str:
    r"""A file's name as UTF-8 can hold it: bytes that are none stand as ``\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def facts_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table for a notebook: a title, names and values; all of it is text."""
    import html

    left = "<td style='text-align:left'>"
    cells = "".join(
        f"<tr>{left}{html.escape(printable(name))}</td>"
        f"{left}{html.escape(printable(value))}</td></tr>"
        for name, value in rows
    )
    caption = f"<b>{html.escape(printable(title))}</b>"
    return f"<div>{caption}<table>{cells}</table></div>"
