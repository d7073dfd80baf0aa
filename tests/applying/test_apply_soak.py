"""Random programs over a pattern-filled arena: no byte ever changes under a block."""

from __future__ import annotations

import ctypes
import random
import threading

import numpy as np
import numpy.typing as npt
import pytest

from memplan.native import _alloc

THREADS = 4
ARENA = 8 << 20
# For blocks whose pages are looked at, and returned.
LARGE = (1 << 20, 3 << 20)
WIDE = 96 << 20


def words(address: int, size: int) -> npt.NDArray[np.uint64]:
    """The whole 8-byte words of a block."""
    raw = (ctypes.c_uint64 * (size // 8)).from_address(address)
    return np.frombuffer(raw, dtype=np.uint64)


class Soaker:
    """One thread's program: it asks, fills, keeps for a while, checks, frees."""

    sizes: tuple[int, ...] = (8, 64, 200, 1024, 4096, 65536, 300_000)
    most_live = 60

    def __init__(self, replay: _alloc.Replay, seed: int, requests: int) -> None:
        self.replay, self.requests = replay, requests
        self.random = random.Random(seed)
        self.pattern = seed << 40
        self.errors = self.served = 0
        self.live: list[tuple[int, int, int]] = []

    def run(self) -> None:
        for _ in range(self.requests):
            size = self.random.choice(self.sizes)
            address = self.replay.allocate(size)
            if address:
                self.served += 1
                self.pattern += 1
                words(address, size)[:] = self.pattern
                self.live.append((address, size, self.pattern))
            while self.live and (
                self.random.random() < 0.4 or len(self.live) > self.most_live
            ):
                self.free(self.random.randrange(len(self.live)))
            if self.random.random() < 0.002:
                self.replay.next_step()
        while self.live:
            self.free(0)

    def free(self, index: int) -> None:
        address, size, pattern = self.live.pop(index)
        if (words(address, size) != pattern).any():
            self.errors += 1
        self.replay.release(address)


def soak(total: int, seed: int) -> tuple[int, int, dict[str, int], _alloc.Replay]:
    """Pattern errors, requests served by the arena, the counts, the replay."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([8, 64, 200, 1024, 4096, 65536, 300_000], 2000).astype(np.int64)
    # A plan that was never right: offsets at random, so that conflicts abound.
    offsets = rng.integers(0, (ARENA - 300_032) // 64, 2000) * 64
    offsets[rng.random(2000) < 0.05] = -1
    starts = np.array([0, 300, 600], dtype=np.int64)
    no = np.zeros(2000, dtype=np.bool_)
    table = _alloc.table(sizes, offsets, starts, 1, 3, no[:3], no, ARENA, ARENA)
    replay = _alloc.make_replay(table, ARENA)
    soakers = [Soaker(replay, seed + i + 1, total // THREADS) for i in range(THREADS)]
    threads = [threading.Thread(target=soaker.run) for soaker in soakers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = sum(soaker.errors for soaker in soakers)
    served = sum(soaker.served for soaker in soakers)
    return errors, served, replay.hot_counts(), replay


def random_table(rng: np.random.Generator) -> _alloc.Table:
    """Steps of any kind, some elastic; offsets at random; some blocks sparse."""
    count = int(rng.integers(50, 600))
    sizes = rng.choice([8, 64, 200, 1024, 65536, *LARGE], count).astype(np.int64)
    offsets = rng.integers(0, (WIDE - LARGE[-1]) // 64, count) * 64
    offsets[rng.random(count) < 0.05] = -1
    steps = int(rng.integers(2, 8))
    starts = np.sort(rng.integers(0, count, steps)).astype(np.int64)
    starts[0] = 0
    loop = sorted(rng.choice(steps + 1, 2, replace=False).tolist())
    elastic = rng.random(steps) < 0.3
    elastic[: loop[0]] = False  # a warm-up runs once, so it has an exact order
    sparse = rng.random(count) < 0.3
    limits = rng.integers(WIDE // 2, WIDE, 2).tolist()
    return _alloc.table(sizes, offsets, starts, *loop, elastic, sparse, *limits)


class LargeSoaker(Soaker):
    """Asks for blocks whose pages are looked at, and returned, as well."""

    sizes = (8, 64, 200, 1024, 65536, *LARGE)
    most_live = 12


def soak_exchanges(total: int, seed: int) -> None:
    """Tables are exchanged, and pages returned, while four threads run."""
    rng = np.random.default_rng(seed)
    replay = _alloc.make_replay(random_table(rng), WIDE, 2)
    soakers = [
        LargeSoaker(replay, seed + i + 1, total // THREADS) for i in range(THREADS)
    ]
    threads = [threading.Thread(target=soaker.run) for soaker in soakers]
    for thread in threads:
        thread.start()
    adopted = 0
    while any(thread.is_alive() for thread in threads):
        replay.adopt(random_table(rng))
        replay.unsettle(bool(rng.random() < 0.3))
        adopted += 1
        assert len(replay.touched()) > 0
        assert sum(counts["requests"] for _, counts in replay.take_steps()) >= 0
        threads[0].join(0.002)
    assert sum(soaker.errors for soaker in soakers) == 0
    assert sum(soaker.served for soaker in soakers) > total // 8
    assert adopted > 10
    assert replay.live_blocks == replay.live_bytes == 0
    for counts in (replay.hot_counts(), replay.warmup_counts()):
        assert counts["requests"] == sum(
            counts[part] for part in ("planned", "unplanned", "online", "fallback")
        )


def check(total: int, seed: int) -> None:
    errors, served, counts, replay = soak(total, seed)
    assert errors == 0
    assert served > total // 4
    assert counts["conflicts"] > 0
    assert counts["planned"] > 0
    assert counts["fallback"] > 0
    assert counts["requests"] == (
        counts["planned"] + counts["unplanned"] + counts["online"] + counts["fallback"]
    )
    assert replay.live_blocks == replay.live_bytes == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_no_pattern_is_ever_disturbed(seed: int) -> None:
    check(40_000, seed)


@pytest.mark.soak
def test_no_pattern_is_disturbed_in_a_million_requests() -> None:
    check(1_000_000, 7)


def test_no_pattern_is_disturbed_when_tables_are_exchanged() -> None:
    soak_exchanges(6_000, 11)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [12, 13])
def test_no_pattern_is_disturbed_in_many_exchanges(seed: int) -> None:
    soak_exchanges(100_000, seed)
