"""Untrusted text, made safe for a terminal, a picture or HTML."""

from __future__ import annotations

import os
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""`text` on one line, with escapes such as ``\x1b`` for unprintable characters.

    These are line breaks, control characters, changes of the writing direction, and
    undecodable bytes of file names.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def name_as_text(name: str) -> str:
    r"""A file's name as valid UTF-8, with escapes such as ``\xff`` for other bytes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def facts_html(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """An HTML table for a notebook: a title, names and values, all escaped."""
    import html

    left = "<td style='text-align:left'>"
    cells = "".join(
        f"<tr>{left}{html.escape(printable(name))}</td>"
        f"{left}{html.escape(printable(value))}</td></tr>"
        for name, value in rows
    )
    caption = f"<b>{html.escape(printable(title))}</b>"
    return f"<div>{caption}<table>{cells}</table></div>"
