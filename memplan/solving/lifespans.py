"""How large an arena must be in which blocks lie by how long they live.

Offsets for steps of many sizes hold the largest of each block, which together is more
than any one step takes; those for steps of a few kinds lie in the way of what the step
before, of another kind, has left. Instead a block may go to the smallest hole that
holds it, brief ones to the hole's high end and others to its low one, so that what is
freed soon leaves no holes between what stays. The recorded steps are played so, in
arenas of a few sizes, by the code that places the program's blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem

if TYPE_CHECKING:
    from memplan.native._alloc import Ranges

# Of the most live bytes, one in so many is added.
SPARE_PARTS = (32, 24, 16, 12, 8, 6, 4)


def arena_by_lifespan(blocks: Problem, steps: int, peak: int) -> int:
    """Bytes of the arena that serves `blocks` with least memory, or 0 where all have
    room only at offsets, which take `peak` bytes.

    blocks: of so many recorded steps, on a linear clock. What finds no room in an arena
    comes on top of it. The spare part is for holes, and for steps to come: of so many
    whose sizes are anywhere up to a largest one, that is by one part in as many larger
    than the largest seen.
    """
    most_live = lower_bound(blocks)
    unit = blocks.granularity
    parts = [part for part in SPARE_PARTS if part <= max(steps, SPARE_PARTS[-1])]
    arenas = [-(-(most_live + most_live // part) // unit) * unit for part in parts]
    needed = {arena: arena + beside(blocks, arena) for arena in arenas}
    best = min(arenas, key=needed.__getitem__)
    return 0 if best < needed[best] and most_live <= peak < needed[best] else best


def beside(blocks: Problem, arena: int) -> int:
    """The most bytes at one time of blocks that find no room in an arena of so many."""
    from memplan.native._alloc import Ranges

    ranges: Ranges = Ranges(arena, blocks.granularity)
    count = len(blocks)
    # Frees first, though on a clock of requests and frees no two come at one time.
    order = np.argsort(np.concatenate([blocks.upper, blocks.lower]), kind="stable")
    taken, brief = blocks.taken.tolist(), blocks.brief.tolist()
    places = [0] * count
    now = most = 0
    for row in order.tolist():
        block, made = row % count, row >= count
        if made:
            places[block] = ranges.take_anywhere(taken[block], brief[block])
        elif places[block] >= 0:
            ranges.give_back(places[block])
        if places[block] < 0:
            now += taken[block] if made else -taken[block]
            most = max(most, now)
    return most
