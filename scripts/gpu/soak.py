"""A million requests on four threads and four streams, under plans exchanged at random.

    python scripts/gpu/soak.py [REQUESTS]

Counts blocks that overlap while both are alive, and blocks left in arenas at the end;
ends with 1 unless both are none.
"""

from __future__ import annotations

import bisect
import random
import sys
import threading

import numpy as np
import torch

from memplan.applying import cuda
from memplan.applying.cuda_library import Library, Place
from memplan.applying.tables import ReplayArrays
from memplan.recording.cuda_slots import take_slots

THREADS = 4
SIZES = (100, 512, 4096, 30_000, 65_536, 1 << 20)


class Ledger:
    """The addresses of all blocks alive, to hold each other against."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[tuple[int, int]] = []
        self.overlaps = 0

    def add(self, begin: int, end: int) -> None:
        with self._lock:
            at = bisect.bisect(self._blocks, (begin, end))
            around = self._blocks[max(at - 1, 0) : at + 1]
            self.overlaps += any(b < end and begin < e for b, e in around)
            self._blocks.insert(at, (begin, end))

    def remove(self, begin: int, end: int) -> None:
        with self._lock:
            del self._blocks[bisect.bisect_left(self._blocks, (begin, end))]


def random_plan(rng: random.Random) -> tuple[ReplayArrays, int]:
    arena = rng.choice([2, 16, 48]) << 20
    sizes = [rng.choice(SIZES) for _ in range(600)]
    places = [rng.randrange((arena - (1 << 20)) // 512) * 512 for _ in sizes]
    places = [-1 if rng.random() < 0.05 else place for place in places]
    columns = [
        np.array(each, dtype=np.int64) for each in (sizes, places, [0, 200, 400])
    ]
    none = np.zeros(len(sizes), dtype=np.bool_)
    return ReplayArrays(*columns, 1, 3, [False] * 3, none), arena


def work(library: Library, ledger: Ledger, requests: int, seed: int) -> None:
    rng = random.Random(seed)
    streams = [torch.cuda.Stream() for _ in range(4)]
    live: list[tuple[int, int, torch.Tensor]] = []
    for number in range(requests):
        if number % 50 == 0:
            torch.cuda.set_stream(rng.choice(streams))
        size = rng.choice(SIZES)
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        begin = block.data_ptr()
        ledger.add(begin, begin + size)
        live.append((begin, begin + size, block))
        if rng.random() < 0.1:
            block.record_stream(rng.choice(streams))
        del block
        while len(live) > 60 or (live and rng.random() < 0.49):
            begin, end, last = live.pop(rng.randrange(len(live)))
            ledger.remove(begin, end)
            del last
        if rng.random() < 0.003:
            library.next_step()
        if rng.random() < 0.001:
            place = Place(0, rng.randrange(5))
            if rng.random() < 0.2:
                library.stand_aside(place, rng.random() < 0.5)
            if rng.random() < 0.05:
                library.retire()
            library.load_plan(place, *random_plan(rng))
    while live:
        begin, end, _ = live.pop()
        ledger.remove(begin, end)


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    torch.cuda.init()
    library = cuda.usable_library(torch)
    take_slots(library, torch)
    rng = random.Random(1)
    for rank in range(5):
        library.load_plan(Place(0, rank), *random_plan(rng))
    library.serve(True)
    ledger = Ledger()
    threads = [
        threading.Thread(target=work, args=(library, ledger, requests // THREADS, seed))
        for seed in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    library.retire()
    torch.empty(1, device="cuda")  # which finds that other streams are done
    library.next_step()
    stats = cuda.stats()[0]
    left = library.blocks()
    torch.cuda.set_stream(torch.cuda.default_stream())
    print(
        f"{requests:,} requests, {stats['planned']:,} planned, {stats['online']:,} "
        f"placed in arenas, {stats['conflicts']:,} conflicts; "
        f"{ledger.overlaps} overlaps, {left} blocks and {stats['arena_bytes']} bytes "
        "left in arenas, "
        f"{torch.cuda.memory_allocated()} bytes allocated"
    )
    sys.exit(bool(ledger.overlaps or left or stats["arena_bytes"]))


if __name__ == "__main__":
    main()
