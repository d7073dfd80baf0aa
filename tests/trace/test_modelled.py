"""What torch would reserve of a GPU, by native models: against plain ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.native import _alloc
from memplan.trace.caching_allocator import CachingAllocator

MIB = 1 << 20
UNMAPPED, FREE, USED = range(3)


@dataclass
class Part:
    """Of a range of addresses; used by the block of that name."""

    size: int
    state: int
    name: int = -1


class Range:
    """Of torch's expandable segments: its parts in a list, looked through each time."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.parts = [Part(1 << 40, UNMAPPED)]

    def mapped(self) -> int:
        return sum(part.size for part in self.parts if part.state != UNMAPPED)

    def room(self, i: int) -> int:
        """Bytes that a free part can grow to."""
        after = self.parts[i + 1] if i + 1 < len(self.parts) else Part(0, USED)
        return self.parts[i].size + (after.size if after.state == UNMAPPED else 0)

    def cut(self, i: int, size: int) -> None:
        part = self.parts[i]
        if part.size > size:
            self.parts.insert(i + 1, Part(part.size - size, part.state))
            part.size = size

    def join(self) -> None:
        joined: list[Part] = []
        for part in self.parts:
            if joined and part.state == joined[-1].state != USED:
                joined[-1].size += part.size
            else:
                joined.append(part)
        self.parts = joined

    def allocate(self, name: int, size: int) -> None:
        fits = [i for i, part in enumerate(self.parts) if part.state == FREE]
        fits = [i for i in fits if self.parts[i].size >= size]
        fits.sort(key=lambda i: self.parts[i].size)
        while len(fits) > 1 and self.room(fits[1]) < self.room(fits[0]):
            fits.pop(0)
        i = fits[0] if fits else self.map(size)
        self.cut(i, size)
        self.parts[i].state, self.parts[i].name = USED, name

    def map(self, size: int) -> int:
        """The part of at least `size` bytes that is free then."""
        for i, part in enumerate(self.parts):
            if part.state != UNMAPPED:
                continue
            first = i - 1 if i > 0 and self.parts[i - 1].state == FREE else i
            run = 0
            for other in self.parts[first:]:
                if other.state == USED:
                    break
                run += other.size
            if run < size:
                continue
            while self.parts[first].state == UNMAPPED or self.parts[first].size < size:
                begins = self.parts[first].state == UNMAPPED
                left = size - (0 if begins else self.parts[first].size)
                at = first if begins else first + 1
                self.cut(
                    at, min(self.parts[at].size, -(-left // self.unit) * self.unit)
                )
                self.parts[at].state = FREE
                self.join()
            return first
        raise AssertionError

    def free(self, name: int) -> None:
        (part,) = [part for part in self.parts if part.name == name]
        part.state, part.name = FREE, -1
        self.join()

    def empty_cache(self) -> None:
        start, i = 0, 0
        while i < len(self.parts):
            part = self.parts[i]
            end = start + part.size
            low, high = -(-start // self.unit) * self.unit, end // self.unit * self.unit
            if part.state == FREE and low < high:
                self.cut(i, low - start or part.size)
                if low > start:
                    start, i = low, i + 1
                self.cut(i, high - low)
                self.parts[i].state = UNMAPPED
            start, i = start + self.parts[i].size, i + 1
        self.join()


class Expandable:
    """As CachingAllocator, with expandable segments; blocks have names."""

    def __init__(self) -> None:
        self.ranges = [Range(2 * MIB), Range(20 * MIB)]
        self.large: dict[int, bool] = {}
        self.most_reserved = 0

    def allocate(self, name: int, size: int) -> None:
        rounded = -(-size // 512) * 512
        self.large[name] = rounded > MIB
        self.ranges[self.large[name]].allocate(name, rounded)
        reserved = sum(each.mapped() for each in self.ranges)
        self.most_reserved = max(self.most_reserved, reserved)

    def free(self, name: int) -> None:
        self.ranges[self.large[name]].free(name)

    def empty_cache(self) -> None:
        for each in self.ranges:
            each.empty_cache()


SIZES = st.sampled_from(
    [1, 512, 5000, MIB, MIB + 1, 3 * MIB, 10 * MIB - 512, 10 * MIB, 12 * MIB, 33 * MIB]
)
EMPTIED = st.booleans()


@given(st.lists(st.tuples(SIZES, st.integers(0, 12), EMPTIED), max_size=60))
def test_the_models_reserve_what_plain_ones_do(
    requests: list[tuple[int, int, bool]],
) -> None:
    """requests: bytes, after how many others each is freed, and whether the cache is
    emptied then."""
    plain, expandable = CachingAllocator(), Expandable()
    rows: list[tuple[int, int, int]] = []  # what, address, size
    due: dict[int, list[tuple[int, Callable[[], object]]]] = {}
    for i, (size, lives, emptied) in enumerate(requests):
        at, _ = plain.allocate(size)
        expandable.allocate(i, size)
        due.setdefault(i + lives, []).append((i, lambda at=at: plain.free(at)))
        rows.append((0, i, size))
        for name, free in due.pop(i, []):
            free()
            expandable.free(name)
            rows.append((1, name, 0))
        if emptied:
            plain.empty_cache()
            expandable.empty_cache()
            rows.append((3, 0, 0))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    columns = (np.ascontiguousarray(column) for column in table.T)
    found = _alloc.modelled(*columns, np.zeros(len(rows), dtype=np.int64))
    assert found == (plain.most_reserved, expandable.most_reserved)
