"""Kernels for dynamic storage allocation, on contiguous one-dimensional arrays.

n blocks: lower, upper, size, alignment and offsets are int64 of shape (n,), in ticks
and bytes; lifespans are half-open. On a periodic clock, `period` is its length and
upper exceeds it where a lifespan reaches over its end; 0 means a linear clock. Orders
name blocks, int32, first come first served. Wrong arguments raise ValueError or
TypeError: callers check what users give them.
"""

from typing import Literal

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

def place_pieces(
    size: _Int64,
    alignment: _Int64,
    fixed: _Int64,
    order: _Int32,
    pieces: _Int64,
) -> _Int64:
    """Offsets, each the lowest where no piece touches another used at the same time.

    Blocks with `fixed` >= 0 are placed before those of `order`, which are the others.
    pieces: as `Search` has it.
    """

class Search:
    """Randomised search over orders of priority; threads may share it, in turns.

    classic: float64 of shape (k, n), k > 0, finite: priorities to start from, the
    highest first. `fixed` as in `fill_gaps`, but None where all blocks are free.
    taken: bytes of each block that count for the peak, int64 of shape (n,), at most its
    size; None for all.
    pieces: owner, lower, upper, begin and end of what blocks use, int64, shape (5, m);
    None where they use all of them all their life. On a linear clock alone.
    """

    def __init__(
        self,
        lower: _Int64,
        upper: _Int64,
        size: _Int64,
        classic: npt.NDArray[np.float64],
        seed: int,
        alignment: _Int64 | None = None,
        fixed: _Int64 | None = None,
        period: int = 0,
        taken: _Int64 | None = None,
        pieces: _Int64 | None = None,
    ) -> None: ...
    def advance(
        self,
        goal: int,
        orders: int,
        seconds: float,
        hard_seconds: float,
        threads: int,
        below: int = ...,
    ) -> None:
        """Search on in whole rounds, whose results do not depend on the threads.

        below: a peak that was reached elsewhere; what is no better is not looked for.

        Ends between rounds once the peak is at most `goal`, `orders` were packed since
        the beginning, or `seconds` have passed; `hard_seconds` ends a round, too.
        """

    @property
    def packed(self) -> int:
        """Orders packed so far, lanes that were spared the last of them included."""

    @property
    def peak(self) -> int | None:
        """Bytes of the best packing, None before there is one."""

    @property
    def offsets(self) -> _Int64:
        """Of the best packing; empty before there is one."""

class Ejection:
    """Search by ejection chains; threads may share it, in turns.

    offsets: a packing to begin with, in which nothing collides. `fixed` as in
    `fill_gaps`, but None where all blocks are free. At least one block.
    """

    def __init__(
        self,
        lower: _Int64,
        upper: _Int64,
        size: _Int64,
        offsets: _Int64,
        seed: int,
        alignment: _Int64 | None = None,
        fixed: _Int64 | None = None,
        period: int = 0,
    ) -> None: ...
    def offer(self, offsets: _Int64) -> None:
        """Take this packing, if it is better, where nothing better is under way."""
    def advance(
        self,
        goal: int,
        placements: int,
        seconds: float,
        hard_seconds: float,
        threads: int,
        work: int = ...,
    ) -> None:
        """Search on in whole rounds, whose results do not depend on the threads.

        Ends between rounds once the peak is at most `goal`, `placements` were made or
        `work` was done since the beginning, or `seconds` have passed; `hard_seconds`
        ends a round, too.
        """

    @property
    def placed(self) -> int:
        """Placements made so far, of all lanes."""

    @property
    def worked(self) -> int:
        """Units of work done so far, of all lanes: the same on any machine."""

    @property
    def peak(self) -> int:
        """Bytes of the best packing."""

    @property
    def offsets(self) -> _Int64:
        """Of the best packing."""

class ExactSearch:
    """Canonical branch and bound for one capacity; threads may share it, in turns.

    alignment, fixed (-1: free) and capacity in the unit of `size`, all below 2^43.
    orders: rankings, of the letters W lifetime, A lifetime x size, T largest total of a
    section (of what waits), C sections, Z size, O overlapping blocks, all descending; M
    before them: only what must lie in a section next is tried, where there is such a
    section; R and a number, the seed: begun again and again under other rankings.
    beyond: how far each block may reach above the capacity, at most its size, int64 of
    shape (n,); None for 0.
    """

    def __init__(
        self,
        lower: _Int64,
        upper: _Int64,
        size: _Int64,
        alignment: _Int64,
        fixed: _Int64,
        capacity: int,
        orders: list[str],
        period: int = 0,
        beyond: _Int64 | None = None,
    ) -> None: ...
    def run(
        self,
        rounds: int,
        placements: int,
        threads: int,
        seconds: float,
    ) -> Literal["open", "fits", "never"]:
        """Search on, in rounds of so many `placements` under every ranking.

        Ends after `rounds`, or `seconds`, or the round that found the answer. "never"
        is a proof. The answers depend on the rounds, not on the number of threads.
        """

    def offsets(self) -> _Int64:
        """Of the packing that fits; ValueError if there is none."""

    @property
    def nodes(self) -> int:
        """Placements under all rankings."""
