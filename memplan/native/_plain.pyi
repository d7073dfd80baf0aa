"""Pickles of plain data, read without running any code.

Values are cells: numbers that mean something to the Plain they are of, and to no other.
"""

import numpy as np
import numpy.typing as npt

_Cells = npt.NDArray[np.uint64]

ABSENT: int  # the cell of a value that is not there

class Limits:
    """Bytes of memory, instructions and so on that reading may take; weights in bytes
    of what is made."""

    def __init__(
        self,
        memory: int,
        steps: int,
        marks: int,
        text_bytes: int,
        long_bytes: int,
        protocol: int,
        container: int,
        item: int,
        memo: int,
        text: int,
    ) -> None: ...

class Plain:
    """A pickle that was read, or refused."""

    def __init__(self, data: bytes, limits: Limits) -> None: ...
    @property
    def fault(self) -> tuple[int, int, bool, str] | None:
        """Why it was refused, None if it was not: the byte, the instruction that is
        none of plain data's or -1, whether the data were cut off, what is wrong."""

    @property
    def root(self) -> int:
        """The cell of what the pickle stands for."""

    def is_list(self, cell: int) -> bool: ...
    def length(self, cell: int) -> int:
        """Of a list. Raises ValueError for anything else."""

    def item(self, cell: int, i: int) -> int:
        """An item of a list. Raises ValueError, IndexError."""

    def get(self, cell: int, key: str) -> int | None:
        """The value of a key in a dict; None if it is none, or does not have it."""

    def widest(self, cell: int) -> tuple[int, int]:
        """The most items of any dict in a list, and 0; -1 and the place of the first
        entry that is no dict, if there is one."""

    def column(self, cell: int, key: str) -> _Cells:
        """Of each dict in a list the value of a key, or ABSENT."""

    def integers(self, cells: _Cells) -> tuple[_Cells, npt.NDArray[np.uint8]]:
        """Values of cells, and 1 where they are integers from 0 to 2^64 - 1."""

    def values(self, cells: _Cells) -> list[object]:
        """They as Python objects; what was shared stays shared, among them too."""
