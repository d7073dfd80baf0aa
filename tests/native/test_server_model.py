"""The server of requests places every request where a slow model of it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st

from memplan.native import _alloc
from tests.applying.served import Served, column, flags
from tests.strategies import examples

WINDOW, HISTORY = 64, 512  # see native/replay/policy.cpp
LEARNING, FEW = 8, 16
ARENA, ONLINE = 1 << 13, 1 << 14
Step = list[tuple[int, int]]  # of each request its size and offset, -1 for none


@dataclass
class Model:
    """Steps before `begin` are the warm-up, those before `end` repeat."""

    steps: list[Step]
    begin: int
    end: int
    elastic: bool
    used: dict[int, int] = field(default_factory=dict)  # start -> end
    at: int = 0
    due: int = 0  # of the loop
    whole: int = 0  # elastic steps that came in full
    usual: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.due = self.begin
        self.enter(0)

    def enter(self, step: int, skipped: int = 0) -> None:
        self.at = step
        self.asked: list[int] = self.asked[:skipped] if skipped else []
        self.start = self.reach = skipped
        self.taken: set[int] = set()
        self.in_order, self.stray, self.outgrown = True, False, False
        if self.begin <= step < self.end:
            self.due = step + 1 if step + 1 < self.end else self.begin

    def is_elastic(self, step: int) -> bool:
        return self.elastic and self.begin <= step < self.end

    def next_step(self) -> None:
        full = len(self.asked) == len(self.steps[self.at])
        fits = bool(self.asked) or not self.steps[self.at]
        if self.is_elastic(self.at):
            fits = full and not self.stray
            if fits:
                self.whole += 1
                for i, size in enumerate(self.asked):
                    self.usual.setdefault((self.at, i), set()).add(size)
        if self.at < self.begin:
            self.enter(self.at + 1)
        else:
            self.enter(self.due if fits else self.at)

    def match(self, size: int) -> int | None:
        """The place in the step of the request that is one of `size`."""
        place = len(self.asked)
        self.asked.append(size)
        step = self.steps[self.at]
        if self.is_elastic(self.at):
            return self.match_by_position(place, size)
        if not (self.in_order and place < len(step) and step[place][0] == size):
            other = self.another() if place < HISTORY else None
            if other is None:
                self.in_order = False
                return self.match_nearby(size)
            due = self.at if self.at < self.end else self.due
            self.enter(other, place)
            self.asked.append(size)
            self.due = due if other >= self.end else self.due
        return self.take(place)

    def match_by_position(self, place: int, size: int) -> int | None:
        known = [self.usual.get((self.at, i), set()) for i in range(len(self.asked))]
        differing = sum(
            len(sizes) == 1 and asked not in sizes
            for sizes, asked in zip(known, self.asked, strict=True)
        )
        self.stray |= place >= len(self.steps[self.at])
        self.stray |= self.whole >= LEARNING and differing > FEW + (place + 1) // 8
        if self.stray:
            return None
        self.outgrown |= size > self.steps[self.at][place][0]
        return None if self.outgrown else place

    def match_nearby(self, size: int) -> int | None:
        first = max(self.start, self.reach - WINDOW)
        step = self.steps[self.at]
        for place in range(first, min(len(step), self.reach + WINDOW)):
            if place not in self.taken and step[place][0] == size:
                return self.take(place)
        return None

    def take(self, place: int) -> int:
        self.taken.add(place)
        self.reach = max(self.reach, place + 1)
        return place

    def another(self) -> int | None:
        """The step that begins like this one; the loop's first, from the one due."""
        if self.at < self.begin:
            return None
        loop = [*range(self.due, self.end), *range(self.begin, self.due)]
        for step in [*loop, *range(self.end, len(self.steps))]:
            sizes = [size for size, _ in self.steps[step]]
            alike = sizes[: len(self.asked)] == self.asked
            if step != self.at and alike and not self.is_elastic(step):
                return step
        return None

    def serve(self, size: int) -> int | None:
        """Where the request goes: an offset, or None for the default allocator."""
        hot = self.at >= self.begin
        place = self.match(size)
        if place is not None:
            offset = self.steps[self.at][place][1]
            if offset < 0:
                return None
            if self.put(offset, size):
                return offset
        if not hot:
            return None
        # Beyond the plan's part if its place was taken, within it if unexpected; else
        # anywhere departures may lie.
        tries = [self.best_fit(size, ONLINE)]
        if place is None:
            tries.insert(0, self.best_fit(size, ARENA))
        else:
            tries.insert(0, self.lowest(size, ARENA))
        found = next((offset for offset in tries if offset is not None), None)
        if found is not None:
            assert self.put(found, size)
        return found

    def put(self, offset: int, size: int) -> bool:
        end = offset + -(-size // 64) * 64
        free = all(end <= start or offset >= last for start, last in self.used.items())
        if end <= ARENA + ONLINE and free:
            self.used[offset] = end
            return True
        return False

    def holes(self, limit: int) -> Iterator[tuple[int, int]]:
        low = 0
        for start, end in sorted(self.used.items()):
            yield low, min(start, limit)
            low = end
        yield low, limit

    def best_fit(self, size: int, limit: int) -> int | None:
        want = -(-size // 64) * 64
        fits = [(end - low, low) for low, end in self.holes(limit) if end - low >= want]
        return min(fits)[1] if fits else None

    def lowest(self, size: int, floor: int) -> int | None:
        want = -(-size // 64) * 64
        for low, end in self.holes(ARENA + ONLINE):
            if end - max(low, floor) >= want:
                return max(low, floor)
        return None


SIZES = st.sampled_from([64, 100, 128, 192, 320, 500, 1024])
REQUESTS = st.tuples(SIZES, st.integers(-8, 100).map(lambda n: max(64 * n, -1)))
STEPS = st.lists(st.lists(REQUESTS, min_size=1, max_size=12), min_size=1, max_size=4)
# A program: steps of the plan, each changed in one place, and what is freed.
CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 99), SIZES),
    min_size=1,
    max_size=40,
)


def sizes_asked(step: Step, change: int, at: int, size: int) -> list[int]:
    """The step's sizes as planned, or with one left out, put in, or of another size."""
    sizes = [planned for planned, _ in step]
    at %= len(sizes)
    if change == 1:
        sizes.insert(at, size)
    elif change == 2:
        del sizes[at]
    elif change == 3:
        sizes[at] = size
    return sizes


@examples(40, STEPS, STEPS, CHANGES, st.booleans(), st.booleans(), soak=150)
def test_every_request_goes_where_the_model_puts_it(
    steps: list[Step],
    more: list[Step],
    changes: list[tuple[int, int, int, int]],
    elastic: bool,
    warm: bool,
) -> None:
    every = [*steps, *more]
    begin = min(len(steps) - 1, 1) if warm else 0
    model = Model(every, begin, len(steps), elastic)
    requests = [request for step in every for request in step]
    starts = [sum(map(len, every[:i])) for i in range(len(every))]
    table = _alloc.table(
        column(size for size, _ in requests),
        column(offset for _, offset in requests),
        column(starts),
        begin,
        len(steps),
        flags(model.is_elastic(i) for i in range(len(every))),
        flags(False for _ in requests),
        ARENA,
        ONLINE,
    )
    program = Served(_alloc.make_replay(table, ARENA + ONLINE))
    blocks: list[int] = []
    for turn, (change, place, freed, size) in enumerate(changes):
        step = every[model.at] if place % 3 else every[place % len(every)]
        for asked in sizes_asked(step, change, place, size):
            found = program.ask(asked)
            assert found == model.serve(asked), (turn, asked)
            if found is not None:
                blocks.append(found)
            while blocks and (len(blocks) > 12 or (freed + len(blocks)) % 3 == 0):
                gone = blocks.pop(freed % len(blocks))
                program.drop(gone)
                del model.used[gone]
        program.replay.next_step()
        model.next_step()
