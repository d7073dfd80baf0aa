"""What torch's CUDA allocator would reserve if some requests lay in an arena."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from memplan.arrays import BoolArray
from memplan.trace.caching_allocator import CachingAllocator
from memplan.trace.reserved import most_reserved
from memplan.trace.trace import Action, Columns

MOST_EVENTS = 1_000_000
NEARLY = 100  # the rules hold if they foretell the recording to one part in so many


def foretold_bytes(
    events: Columns, stream: int, in_arena: BoolArray, arena: int
) -> int:
    """The most bytes of segments while the first requests of a program are made.

    events: of all streams, from the program's start. stream: the one with an arena of
    `arena` bytes. in_arena: of each of its first requests, in order, whether the arena
    serves it. The arena comes with the first of these, when segments without a block
    have been given back, as a loader does. 0 where that is not known: the allocator did
    not reserve what its rules say, or there are more than MOST_EVENTS events.
    """
    recorded = most_reserved(events)
    if not recorded or len(events) > MOST_EVENTS:
        return 0
    none = np.zeros(int((events.action == Action.ALLOC).sum()), dtype=np.bool_)
    by_rules = _most_reserved(events, stream, none, 0)
    if abs(by_rules - recorded) > recorded // NEARLY:
        return 0
    return _most_reserved(events, stream, in_arena, arena)


def _most_reserved(
    events: Columns, stream: int, in_arena: BoolArray, arena: int
) -> int:
    allocators: defaultdict[int, CachingAllocator] = defaultdict(CachingAllocator)
    # None: a block in the arena.
    blocks: dict[int, tuple[CachingAllocator, int] | None] = {}
    most, made = 0, False
    planned = iter(in_arena.tolist())
    for action, address, size, used_on in zip(
        events.action.tolist(),
        events.address.tolist(),
        events.size.tolist(),
        events.stream.tolist(),
        strict=True,
    ):
        if action == Action.FREE_COMPLETED:
            block = blocks.pop(address, None)
            if block is not None:
                block[0].free(block[1])
        if action != Action.ALLOC:
            continue
        served = next(planned, None) if used_on == stream else False
        if served is None:
            break
        allocator = allocators[used_on]
        if served and not made:
            made = True
            for each in allocators.values():
                each.empty_cache()
            allocator.allocate(arena)
        blocks[address] = None if served else (allocator, allocator.allocate(size)[0])
        most = max(most, sum(each.reserved for each in allocators.values()))
    return most
