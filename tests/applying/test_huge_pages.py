"""Huge pages beneath large blocks: asked for, given back, never more than counted."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memplan.native import _alloc
from tests.applying.served import Served, table_of

MIB = 1 << 20
HUGE = 2 * MIB
GRANULE = 16 << 10
RESERVE = 1 << 28
BLOCKS = [(8 * MIB, 8 * MIB * i) for i in range(8)]

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(),
    reason="the system knows no huge pages",
)


@dataclass
class Mapping:
    """What the system tells of one; begin and end in bytes from an arena's start."""

    begin: int
    end: int
    flags: tuple[str, ...] = ()


def mappings(replay: _alloc.Replay) -> Iterator[Mapping]:
    """Those that the arena lies in."""
    low, high = replay.base, replay.base + replay.reserved_bytes
    found: Mapping | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            inside = begin < high and end > low
            found = Mapping(begin - low, end - low) if inside else None
        elif found is not None and name == "VmFlags:":
            found.flags = tuple(rest)
            yield found


def asked(replay: _alloc.Replay) -> set[int]:
    """Which huge pages of the arena were asked for, by number."""
    return {
        page
        for part in mappings(replay)
        if "hg" in part.flags
        for page in range(max(part.begin, 0) // HUGE, part.end // HUGE)
    }


def resident(replay: _alloc.Replay) -> int:
    """Bytes of the arena that are; a mapping may be shared with another arena."""
    pages = (ctypes.c_ubyte * (replay.reserved_bytes // mmap.PAGESIZE))()
    base, size = ctypes.c_void_p(replay.base), ctypes.c_size_t(replay.reserved_bytes)
    assert ctypes.CDLL(None).mincore(base, size, pages) == 0
    return sum(pages) * mmap.PAGESIZE


def touch(replay: _alloc.Replay, offset: int | None, size: int) -> None:
    if offset is not None:
        ctypes.memset(replay.base + offset, 1, size)


def served(requests: list[tuple[int, int]], *, elastic: bool = False) -> Served:
    arena = max(size + offset for size, offset in requests)
    table = table_of(requests, arena=arena, online=arena, elastic=elastic)
    return Served(_alloc.make_replay(table, RESERVE))


def test_huge_pages_are_asked_for_beneath_blocks_that_cover_them() -> None:
    requests = [(MIB, 0), (5 * MIB, MIB), *BLOCKS[1:]]
    program = served(requests)
    assert asked(program.replay) == set()
    program.drop(program.ask(MIB))
    program.drop(program.ask(5 * MIB))
    assert asked(program.replay) == {1, 2}  # a small block came to lie in the first
    for size, _ in BLOCKS[1:]:
        program.drop(program.ask(size))
    assert asked(program.replay) == {1, 2, *range(4, 32)}


def test_what_goes_back_to_the_system_comes_back_in_small_pages() -> None:
    program = served(BLOCKS)
    for size, offset in BLOCKS:
        assert program.ask(size) == offset
        touch(program.replay, offset, size)
    assert len(asked(program.replay)) == 32
    for _, offset in BLOCKS[:-1]:
        program.drop(offset)
    program.replay.stand_aside(True)
    assert asked(program.replay) == set(range(28, 32))
    assert resident(program.replay) <= 9 * MIB


@pytest.mark.parametrize(
    "requests", [[(8 * MIB, 0), (MIB, 8 * MIB)], [(MIB, i * MIB) for i in range(64)]]
)
def test_small_arenas_and_small_blocks_get_none(
    requests: list[tuple[int, int]],
) -> None:
    program = served(requests)
    for size, _ in requests:
        program.drop(program.ask(size))
    assert asked(program.replay) == set()


def test_elastic_steps_get_none() -> None:
    program = served(BLOCKS, elastic=True)
    for size, _ in BLOCKS:
        program.drop(program.ask(size))
    assert asked(program.replay) == set()


@pytest.mark.parametrize("seed", range(4))
def test_no_more_is_resident_than_counts(seed: int) -> None:
    """Blocks of any size, touched in part, under a plan that fits half of them."""
    rng = random.Random(seed)
    sizes = [rng.choice((64, 9000, MIB, 3 * MIB, 9 * MIB)) for _ in range(24)]
    requests, top = [], 0
    for size in sizes:
        requests.append((size, top))
        top += -(-size // 64) * 64
    program = served([*requests, (MIB, max(top, 40 * MIB))])
    live: list[int | None] = []
    for turn in range(300):
        if turn % 25 == 0:
            program.replay.next_step()
        size = rng.choice(sizes)
        live.append(program.ask(size))
        touch(program.replay, live[-1], rng.choice((1, size // 2 + 1, size)))
        while len(live) > 6 or (live and rng.random() < 0.4):
            program.drop(live.pop(rng.randrange(len(live))))
        if turn % 20 == 0:
            assert resident(program.replay) <= program.replay.resident_bytes + GRANULE
