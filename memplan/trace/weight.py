"""What JSON will take up once it is parsed, told from its structure alone.

A byte of text can become thirty of Python's objects: a list of empty lists does. Every
list, object, text and comma is counted before the text is parsed.
"""

from __future__ import annotations

from memplan.errors import FormatError
from memplan.files import PathLike

_COSTS = {b"[": 150, b"{": 240, b",": 60, b'"': 25}  # bytes each; a text has two quotes
_PER_FILE_BYTE = 10
_ANYWAY = 64 << 20


def check_weight(path: PathLike, data: bytes, size: int, before: int = 0) -> int:
    """Bytes that `data`, JSON, will take up, with the `before` already taken.

    size: of the file it is from. Raises FormatError, unparsed, if that is out of all
    proportion to the file.
    """
    weight = before + sum(cost * data.count(sign) for sign, cost in _COSTS.items())
    if weight > _ANYWAY + _PER_FILE_BYTE * size:
        raise FormatError(
            path,
            f"its JSON would take up some {weight >> 20} MiB",
            "record with fewer stacks",
        )
    return weight
