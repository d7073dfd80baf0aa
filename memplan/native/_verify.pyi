"""What plans are verified with: no code of the solvers'."""

import numpy as np
import numpy.typing as npt

_Int64 = npt.NDArray[np.int64]

def overlaps(lower: _Int64, upper: _Int64, begin: _Int64, end: _Int64) -> _Int64:
    """Pieces that share bytes while both are alive: rows (newcomer, there, time).

    n pieces, int64, shape (n,) each: half-open lifespans in ticks, not negative, and
    bytes [begin, end), not empty. With lower > upper, a piece is alive from the clock's
    start, and from lower on. Shape (k, 3): at `time` the newcomer touched a piece that
    was there, or -1 for when the clock starts, and is not counted as being there from
    then on. Empty exactly if no two pieces overlap. Wrong arguments raise ValueError or
    TypeError.
    """
