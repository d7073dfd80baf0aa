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
# The large ones' pages are looked at, and returned.
SIZES = (8, 64, 200, 1024, 65536, 1 << 20, 3 << 20)
MOST_LIVE = 12  # of a thread's
WIDE = 96 << 20


def words(address: int, size: int) -> npt.NDArray[np.uint64]:
    """The whole 8-byte words of a block."""
    raw = (ctypes.c_uint64 * (size // 8)).from_address(address)
    return np.frombuffer(raw, dtype=np.uint64)


class Soaker:
    """One thread's program: it asks, fills, keeps for a while, checks, frees."""

    def __init__(self, replay: _alloc.Replay, seed: int, requests: int) -> None:
        self.replay, self.requests = replay, requests
        self.random = random.Random(seed)
        self.pattern = seed << 40
        self.errors = self.served = 0
        self.live: list[tuple[int, int, int]] = []

    def run(self) -> None:
        for _ in range(self.requests):
            size = self.random.choice(SIZES)
            address = self.replay.allocate(size)
            if address:
                self.served += 1
                self.pattern += 1
                words(address, size)[:] = self.pattern
                self.live.append((address, size, self.pattern))
            while self.live and (
                self.random.random() < 0.4 or len(self.live) > MOST_LIVE
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


def random_table(rng: np.random.Generator) -> _alloc.Table:
    """Steps of any kind, some elastic; offsets at random; some blocks sparse."""
    count = int(rng.integers(50, 600))
    sizes = rng.choice(SIZES, count).astype(np.int64)
    offsets = rng.integers(0, (WIDE - SIZES[-1]) // 64, count) * 64
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


@pytest.mark.parametrize(
    ("total", "seed"),
    [
        (6_000, 11),
        pytest.param(100_000, 12, marks=pytest.mark.soak),
        pytest.param(100_000, 13, marks=pytest.mark.soak),
    ],
)
def test_no_pattern_is_disturbed_while_tables_are_exchanged(
    total: int, seed: int
) -> None:
    """And pages returned, while four threads run."""
    rng = np.random.default_rng(seed)
    replay = _alloc.make_replay(random_table(rng), WIDE, 2)
    soakers = [Soaker(replay, seed + i + 1, total // THREADS) for i in range(THREADS)]
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
