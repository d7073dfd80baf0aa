"""Text from files and file names, made fit for a terminal or a picture."""

from __future__ import annotations

import os


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
