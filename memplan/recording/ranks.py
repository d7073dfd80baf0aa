"""The ranks of a program that a launcher such as torchrun starts several times.

Each rank is a process of its own, with its number in RANK and their count in
WORLD_SIZE; each records into a file of its own and follows a plan of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from memplan.errors import UsageError

PLACEHOLDER = "%r"  # in a file's name: the rank's number
_DIGITS = 9  # at most; a longer number counts no processes


def rank() -> int | None:
    """The number of this process among its ranks, or None if it was launched alone."""
    return _number("RANK")


def ranks() -> int:
    """How many ranks the program has; 1 if it was launched alone."""
    return max(1, _number("WORLD_SIZE") or 1) if rank() is not None else 1


def of_rank(path: Path) -> Path:
    """`path` with the rank's number for each `%r`.

    Raises UsageError if there is a `%r`, and this process has no rank.
    """
    if PLACEHOLDER not in str(path):
        return path
    number = rank()
    if number is None:
        raise UsageError(
            f"{path}: {PLACEHOLDER} stands for the rank, and RANK is "
            f"{_shown('RANK')}; start the program with torchrun, or name the file "
            f"without {PLACEHOLDER}"
        )
    return Path(str(path).replace(PLACEHOLDER, str(number)))


def written_by_rank(path: Path) -> Path:
    """`of_rank(path)`, for a file to be written: each rank needs one of its own.

    Raises UsageError, too, if there are several ranks, and neither `%r` nor the rank's
    own number is in the path: they would all write that one file.
    """
    number, count = rank(), ranks()
    told = PLACEHOLDER in str(path) or re.search(rf"(?<!\d)0*{number}(?!\d)", str(path))
    if number is not None and count > 1 and not told:
        stem, dot, suffixes = path.name.partition(".")
        own = path.with_name(f"{stem}.{PLACEHOLDER}{dot}{suffixes}")
        raise UsageError(
            f"{path} would be written by each of {count} ranks; name it {own}, where "
            f"{PLACEHOLDER} stands for the rank"
        )
    return of_rank(path)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch(rf"[0-9]{{1,{_DIGITS}}}", text) else None


def _shown(name: str) -> str:
    text = os.environ.get(name)
    return "not set" if text is None else repr(text)
