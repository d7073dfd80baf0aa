"""The arena and the matching of requests, through the native Replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from memplan.native import _alloc
from tests.applying.served import table_of
from tests.strategies import examples

UNIT = 64
WINDOW = 64


def make(
    requests: list[tuple[int, int]],
    arena: int,
    starts: tuple[int, ...] = (0,),
    loop_start: int = 0,
) -> _alloc.Replay:
    """A replay of (size, offset) requests."""
    table = table_of(requests, starts, (loop_start, len(starts)), arena=arena)
    return _alloc.make_replay(table, arena)


def test_planned_requests_get_their_offsets_again_and_again() -> None:
    replay = make([(100, 0), (200, 128), (100, 384)], 512)
    base = replay.base
    for _ in range(3):
        blocks = [replay.allocate(size) for size in (100, 200, 100)]
        assert [block - base for block in blocks] == [0, 128, 384]
        for block in blocks:
            replay.release(block)
        replay.next_step()
    assert replay.hot_counts()["planned"] == 9
    assert replay.hot_counts()["conflicts"] == 0
    assert replay.live_blocks == replay.live_bytes == 0


def test_a_planned_range_that_is_taken_is_a_conflict_and_goes_elsewhere() -> None:
    replay = make([(64, 0)], 128)
    base = replay.base
    first = replay.allocate(64)
    replay.next_step()
    second = replay.allocate(64)
    assert (first - base, second - base) == (0, 64)
    counts = replay.hot_counts()
    assert (counts["planned"], counts["conflicts"]) == (1, 1)
    assert counts["online"] == 1


def test_without_room_the_default_allocator_must_serve() -> None:
    replay = make([(64, 0)], 64)
    assert replay.allocate(64)
    assert replay.allocate(64) == 0
    assert replay.allocate(4096) == 0
    counts = replay.hot_counts()
    assert (counts["fallback"], counts["fallback_bytes"]) == (2, 64 + 4096)


def test_departures_take_the_smallest_hole_and_the_lowest_of_equals() -> None:
    replay = make([(64, 0), (64, 192), (64, 320), (64, 448)], 1024)
    base = replay.base
    for _ in range(4):
        replay.allocate(64)
    # Holes: [64, 192), [256, 320), [384, 448), [512, 1024).
    assert replay.allocate(60) - base == 256
    assert replay.allocate(128) - base == 64
    assert replay.allocate(65) - base == 512


def test_requests_that_change_places_still_find_their_entries() -> None:
    replay = make([(64, 0), (128, 64), (192, 192)], 384)
    base = replay.base
    offsets = [replay.allocate(size) - base for size in (192, 64, 128)]
    assert offsets == [192, 0, 64]
    assert replay.hot_counts()["planned"] == 3


def test_an_entry_too_far_ahead_is_not_matched() -> None:
    near = [(64, 64 * i) for i in range(WINDOW)]
    replay = make([*near, (4096, 64 * WINDOW)], 64 * WINDOW + 4096)
    replay.release(replay.allocate(4096))
    assert replay.hot_counts()["planned"] == 0
    replay.next_step()
    replay.allocate(64)
    replay.allocate(4096)
    assert replay.hot_counts()["planned"] == 2


def test_an_unplanned_entry_leaves_its_request_to_the_default_allocator() -> None:
    replay = make([(64, -1), (64, 0)], 64)
    assert replay.allocate(64) == 0
    assert replay.allocate(64) != 0
    counts = replay.hot_counts()
    assert (counts["unplanned"], counts["planned"], counts["fallback"]) == (1, 1, 0)


def test_strangers_in_the_warm_up_stay_outside_the_arena() -> None:
    replay = make([(64, 0), (64, 0)], 1024, starts=(0, 1), loop_start=1)
    assert replay.allocate(512) == 0
    assert replay.warmup_counts()["fallback"] == 1
    assert replay.next_step()  # the first hot step
    assert replay.allocate(512) != 0
    assert not replay.next_step()
    assert replay.hot_counts()["online"] == 1


def test_steps_repeat_from_the_loop_start() -> None:
    requests = [(64, 0), (128, 64), (192, 192)]
    replay = make(requests, 384, starts=(0, 1, 2), loop_start=1)
    for size, offset in [(64, 0), *[(128, 64), (192, 192)] * 3]:
        block = replay.allocate(size)
        assert block - replay.base == offset
        replay.release(block)
        replay.next_step()
    assert replay.warmup_counts()["planned"] == 1
    assert replay.hot_counts()["planned"] == 6


@dataclass
class Reference:
    """The arena by the book: a list of live ranges, scanned whole each time."""

    requests: list[tuple[int, int]]
    arena: int
    live: dict[int, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    reach: int = 0
    floor: int = 0

    def begin(self) -> None:
        self.used, self.reach, self.floor = set(), 0, 0

    def allocate(self, size: int) -> int | None:
        rounded = -(-size // UNIT) * UNIT
        offset = self._matched(size)
        if offset is not None and offset < 0:
            return None
        if offset is None or not self._is_free(offset, rounded):
            offset = self._smallest_hole(rounded)
        if offset is not None:
            self.live[offset] = rounded
        return offset

    def _matched(self, size: int) -> int | None:
        last = min(len(self.requests), self.reach + WINDOW)
        for i in range(self.floor, last):
            if i in self.used or self.requests[i][0] != size:
                continue
            self.used.add(i)
            self.reach = max(self.reach, i + 1)
            self.floor = max(self.floor, self.reach - WINDOW)
            return self.requests[i][1]
        return None

    def _is_free(self, offset: int, size: int) -> bool:
        return offset + size <= self.arena and all(
            offset + size <= start or start + length <= offset
            for start, length in self.live.items()
        )

    def _smallest_hole(self, size: int) -> int | None:
        edges = [*sorted(self.live.items()), (self.arena, 0)]
        holes, top = [], 0
        for start, length in edges:
            if start - top >= size:
                holes.append((start - top, top))
            top = start + length
        return min(holes)[1] if holes else None


SIZES = st.sampled_from([1, 63, 64, 65, 128, 200, 640])


@examples(
    75,
    requests=st.lists(
        st.tuples(SIZES, st.integers(-1, 20).map(lambda k: k * UNIT if k >= 0 else -1)),
        min_size=1,
        max_size=100,
    ),
    arena=st.integers(1, 24).map(lambda k: k * UNIT),
    actions=st.lists(st.one_of(SIZES, st.just("free"), st.just("step")), max_size=200),
    data=st.data(),
    soak=300,
)
def test_it_does_what_the_plain_reference_does(
    requests: list[tuple[int, int]],
    arena: int,
    actions: list[int | str],
    data: st.DataObject,
) -> None:
    replay = make(requests, arena)
    base = replay.base
    reference = Reference(requests, arena)
    for action in actions:
        if action == "step":
            replay.next_step()
            reference.begin()
        elif action == "free":
            if reference.live:
                offset = data.draw(st.sampled_from(sorted(reference.live)))
                replay.release(base + offset)
                del reference.live[offset]
        else:
            assert isinstance(action, int)
            address = replay.allocate(action)
            expected = reference.allocate(action)
            assert (address - base if address else None) == expected
    assert replay.live_blocks == len(reference.live)
    assert replay.live_bytes == sum(reference.live.values())
