"""Kernels for dynamic storage allocation, on contiguous one-dimensional arrays.

n blocks: lower, upper, size, alignment and offsets are int64 of shape (n,), in ticks
and bytes; lifespans are half-open. On a periodic clock, `period` is its length and
upper exceeds it where a lifespan reaches over its end; 0 means a linear clock. Orders
name blocks, int32, first come first served. Wrong arguments raise ValueError or
TypeError: callers check what users give them.
"""

import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]

class BestFit:
    """Best fit on a skyline of offset lines (profile-guided memory optimization, 3.2).

    Built once for some blocks, in O(n log n) time; each decode reuses its memory.
    Threads may share one; they take turns.
    """

    def __init__(
        self,
        lower: _Int64,
        upper: _Int64,
        size: _Int64,
        alignment: _Int64 | None = None,
        period: int = 0,
    ) -> None: ...
    def decode(self, order: _Int32, stack: _Int32 | None = None) -> _Int64:
        """Offsets for the blocks of `order` and `stack`, -1 for others.

        Without a stack, lines on a periodic clock lie on a circle. With one, the clock
        is cut open at 0: `stack` must be the blocks alive across it, and `order` some
        of the others. They are piled up from 0 in this order, and the rest come above.
        """

def longest_first(lifetime: _Int64, size: _Int64) -> _Int32:
    """All blocks, by lifetime descending, then size descending, then index."""

def fill_gaps(
    lower: _Int64,
    upper: _Int64,
    size: _Int64,
    alignment: _Int64,
    fixed: _Int64,
    order: _Int32,
    period: int = 0,
    capacity: int | None = None,
) -> _Int64:
    """Offsets, each the lowest where nothing placed before is in the way.

    Blocks with `fixed` >= 0 are placed before those of `order`, which are the others
    or some of them. One whose top would exceed `capacity` stays out, at -1.
    """
