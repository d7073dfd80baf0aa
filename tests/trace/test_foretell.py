"""What torch would reserve under a plan, by a model of its allocator."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.trace.caching_allocator import CachingAllocator
from memplan.trace.foretell import foretold_bytes
from memplan.trace.trace import Action, Columns

MIB = 1 << 20
Request = tuple[int, int, int]  # bytes, after how many more requests freed, stream


def events_of(requests: list[Request], *, lost: int = 0) -> Columns:
    """The events of a program under torch's allocator; lost: bytes that it reserves and
    no rule explains."""
    allocators = {stream: CachingAllocator() for _, _, stream in requests}
    rows: list[tuple[Action, int, int, int]] = []
    if lost:
        rows.append((Action.SEGMENT_ALLOC, 1 << 50, lost, 0))
    due: dict[int, list[tuple[int, int, int]]] = {}
    for i, (size, kept, stream) in enumerate(requests):
        for at, freed, of in due.pop(i, []):
            allocators[of].free(at)
            rows.append((Action.FREE_COMPLETED, _apart(at, of), freed, of))
        at, rounded = allocators[stream].allocate(size)
        for made, segment, length in allocators[stream].take_changes():
            action = Action.SEGMENT_ALLOC if made else Action.SEGMENT_FREE
            rows.append((action, _apart(segment, stream), length, stream))
        rows.append((Action.ALLOC, _apart(at, stream), rounded, stream))
        due.setdefault(i + kept, []).append((at, rounded, stream))
    action, address, size, stream = zip(*rows, strict=True)
    return Columns.of(action=action, address=address, size=size, stream=stream)


def _apart(address: int, stream: int) -> int:
    return address + (stream << 48)


def foretold(events: Columns, in_arena: list[bool], arena: int) -> int:
    return foretold_bytes(events, 0, np.array(in_arena, dtype=np.bool_), arena)


def test_blocks_in_the_arena_take_no_segment() -> None:
    events = events_of([(30 * MIB, 1, 0), (40 * MIB, 1, 0)])
    assert foretold(events, [False, False], 0) == 70 * MIB
    assert foretold(events, [True, True], 40 * MIB) == 40 * MIB
    assert foretold(events, [False, True], 40 * MIB) == 40 * MIB  # the first went back


def test_what_lies_outside_takes_whole_segments() -> None:
    events = events_of([(4 * MIB, 9, 0), (30 * MIB, 1, 0), (512, 9, 0)])
    assert foretold(events, [False, True, False], 30 * MIB) == (20 + 30 + 2) * MIB


def test_a_small_arena_takes_a_segment_of_twenty_mebibytes() -> None:
    assert foretold(events_of([(2 * MIB, 1, 0)]), [True], 2 * MIB) == 20 * MIB


def test_what_comes_after_the_plan_s_requests_does_not_count() -> None:
    events = events_of([(30 * MIB, 1, 0), (90 * MIB, 1, 0)])
    assert foretold(events, [True], 30 * MIB) == 30 * MIB


def test_other_streams_have_segments_of_their_own() -> None:
    events = events_of([(30 * MIB, 1, 0), (40 * MIB, 1, 7), (50 * MIB, 1, 0)])
    assert foretold(events, [True, True], 50 * MIB) == 90 * MIB


def test_nothing_is_foretold_of_an_allocator_by_other_rules() -> None:
    events = events_of([(30 * MIB, 1, 0)], lost=MIB)
    assert foretold(events, [True], 30 * MIB) == 0
    assert foretold(events.take(np.array([2])), [True], 30 * MIB) == 0  # no segments


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([512, 4096, MIB, 3 * MIB, 12 * MIB, 33 * MIB]),
        st.integers(1, 6),
        st.sampled_from([0, 0, 0, 5]),
    ),
    min_size=1,
    max_size=40,
)


@given(REQUESTS)
def test_without_an_arena_it_is_what_torch_reserved(requests: list[Request]) -> None:
    allocators = {stream: CachingAllocator() for _, _, stream in requests}
    events = events_of(requests)
    own = sum(stream == 0 for _, _, stream in requests)
    found = foretold(events, [False] * own, 0)
    most, due = 0, dict[int, list[tuple[int, int]]]()
    for i, (size, kept, stream) in enumerate(requests):
        for at, of in due.pop(i, []):
            allocators[of].free(at)
        at, _ = allocators[stream].allocate(size)
        due.setdefault(i + kept, []).append((at, stream))
        most = max(most, sum(each.reserved for each in allocators.values()))
    assert found == most


@given(REQUESTS, st.data())
def test_it_is_at_least_the_arena_and_at_most_both(
    requests: list[Request], data: st.DataObject
) -> None:
    events = events_of(requests)
    own = [size for size, _, stream in requests if stream == 0]
    chosen = data.draw(st.lists(st.booleans(), min_size=len(own), max_size=len(own)))
    arena = max([size for size, one in zip(own, chosen, strict=True) if one], default=0)
    found = foretold(events, chosen, arena)
    assert found >= arena
    assert found <= foretold(events, [False] * len(own), 0) + max(arena, 20 * MIB)
