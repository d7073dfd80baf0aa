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
_DIGITS = 9  # a longer number is no count of processes


def rank() -> int | None:
    """The number of this process among its ranks, or None if it was launched alone."""
    return _number("RANK")


def ranks() -> int:
    """Number of ranks of the program; 1 if it was launched alone."""
    return max(1, _number("WORLD_SIZE") or 1) if rank() is not None else 1


def of_rank(path: Path) -> Path:
    """`path` with the rank's number for each `%r`.

    Raises UsageError if there is a `%r`, and this process has no rank.
    """
    if PLACEHOLDER not in str(path):
        return path
    number = rank()
    if number is None:
        text = os.environ.get("RANK")
        found = "not set" if text is None else repr(text)
        raise UsageError(
            f"{path}: {PLACEHOLDER} stands for the rank, but RANK is {found}; start "
            f"the program with torchrun, or drop {PLACEHOLDER} from the name"
        )
    return Path(str(path).replace(PLACEHOLDER, str(number)))


def written_by_rank(path: Path) -> Path:
    """`of_rank(path)` for an output file: each rank needs its own.

    Also raises UsageError if there are several ranks and the path contains neither `%r`
    nor this rank's number: all ranks would write the same file.
    """
    number, count = rank(), ranks()
    own = PLACEHOLDER in str(path) or re.search(rf"(?<!\d)0*{number}(?!\d)", str(path))
    if number is not None and count > 1 and not own:
        stem, dot, suffixes = path.name.partition(".")
        better = path.with_name(f"{stem}.{PLACEHOLDER}{dot}{suffixes}")
        raise UsageError(
            f"all {count} ranks would write {path}; name it {better}, where "
            f"{PLACEHOLDER} stands for the rank"
        )
    return of_rank(path)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch(rf"[0-9]{{1,{_DIGITS}}}", text) else None
