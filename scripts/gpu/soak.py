"""A million requests on four threads and four streams, under plans exchanged at random.

    python scripts/gpu/soak.py [REQUESTS [SEED]] [--seconds SECONDS]

Step by step each thread follows the plan of a stream, outgrows it, or asks for what is
in none; streams and their arenas are shared by threads, blocks are used on other
streams and freed by other threads, some lie in memory pools. Meanwhile plans are
exchanged, given up and forgotten, and memory is bounded so that it runs out.

Counts blocks that overlap while both are alive, and what is left in arenas at the end,
or of torch's memory; ends with 1 unless all are none and arenas were made, refused and
given back.
"""

from __future__ import annotations

import argparse
import bisect
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from memplan.applying import cuda
from memplan.applying.cuda_library import CudaReplay, Library, Place
from memplan.core.problem import Problem
from memplan.core.tables import ReplayArrays
from memplan.errors import EnvironmentUnfitError
from memplan.recording.cuda_library import take_slots
from memplan.solving.bestfit import best_fit

THREADS = STREAMS = 4
MOST_ALIVE = 60  # blocks that one thread keeps beyond a step
MOST_HANDED = 8
UNIT = 512
SIZES = (100, 512, 4096, 30_000, 65_536, 1 << 20, 3 << 20)


@dataclass(frozen=True)
class Loop:
    """A step that repeats, and its plan.

    sizes: bytes asked for, in order. frees: per request, before which later one it is
    freed; their number where that is the step's end. offsets: bytes. elastic: steps may
    ask for less. marked: the program tells where its steps begin.
    """

    sizes: list[int]
    frees: list[int]
    offsets: list[int]
    elastic: bool
    marked: bool

    @property
    def arena(self) -> int:
        """Bytes of it."""
        ends = (at + size for at, size in zip(self.offsets, self.sizes, strict=True))
        return _rounded(max(ends))

    def arrays(self) -> ReplayArrays:
        """As the library takes it: marked, with a step of warm-up that is the same."""
        steps = 2 if self.marked else 1
        columns = [
            np.array(each, dtype=np.int64)
            for each in (
                self.sizes * steps,
                self.offsets * steps,
                [step * len(self.sizes) for step in range(steps)],
            )
        ]
        elastic = [False, self.elastic][-steps:] if self.marked else [False]
        none = np.zeros(steps * len(self.sizes), dtype=np.bool_)
        return ReplayArrays(*columns, steps - 1, steps, elastic, none, not self.marked)


def random_loop(rng: random.Random) -> Loop:
    """One time in five its offsets are wrong, at random: then conflicts abound."""
    count = rng.randrange(9, 60)
    sizes = [rng.choice(SIZES) for _ in range(count)]
    frees = [min(i + rng.randrange(1, 20), count) for i in range(count)]
    lives = Problem.of(range(count), frees, sizes, alignment=UNIT)
    offsets = best_fit(lives).tolist()
    if rng.random() < 0.2:
        most = max(offsets) // UNIT + 1
        offsets = [rng.randrange(most) * UNIT for _ in sizes]
    marked = rng.random() < 0.6
    return Loop(sizes, frees, offsets, marked and rng.random() < 0.5, marked)


def _rounded(size: int) -> int:
    return (size + UNIT - 1) // UNIT * UNIT


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


class Block:
    """A tensor in the ledger, until `free`."""

    def __init__(self, ledger: Ledger, size: int) -> None:
        self._ledger = ledger
        self.tensor: torch.Tensor | None = torch.empty(
            size, dtype=torch.uint8, device="cuda"
        )
        begin = self.tensor.data_ptr()
        self._range = begin, begin + size
        ledger.add(*self._range)

    def free(self) -> None:
        self._ledger.remove(*self._range)
        self.tensor = None


@dataclass
class Shared:
    """What all threads see: the streams, the plan of each, and blocks handed over."""

    native: Library
    rng: random.Random
    streams: list[torch.cuda.Stream]
    ledger: Ledger = field(default_factory=Ledger)
    loops: list[Loop] = field(default_factory=list)
    handed: deque[Block] = field(default_factory=deque)
    requests: int = 0
    going: bool = True
    out_of_memory: int = 0
    exchanged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, stream: int, rng: random.Random, *, later: bool = False) -> None:
        loop = random_loop(rng)
        place = Place(0, stream + 1)  # 0 is the default stream's
        try:
            self.native.load_plan(place, loop.arrays(), loop.arena, later=later)
        except EnvironmentUnfitError:  # there is none to be exchanged
            return
        self.loops[stream] = loop
        self.exchanged += 1


class Program:
    """One thread's."""

    def __init__(self, shared: Shared, number: int, seed: int) -> None:
        self._all, self._number = shared, number
        self._rng = random.Random(seed)
        self._alive: list[Block] = []
        self._pool = torch.cuda.MemPool()
        self.requests = 0

    def step(self) -> None:
        rng, shared = self._rng, self._all
        stream = self._number if rng.random() < 0.8 else rng.randrange(STREAMS)
        with torch.cuda.stream(shared.streams[stream]):
            chance = rng.random()
            if chance < 0.7:
                self._follow(shared.loops[stream], 1)
            elif chance < 0.8:
                self._follow(shared.loops[stream], rng.uniform(1.1, 3))
            elif chance < 0.81:
                with torch.cuda.use_mem_pool(self._pool):
                    self._stray()
            else:
                self._stray()
        if rng.random() < 0.03:
            self._disturb()

    def end(self) -> None:
        for block in self._alive:
            block.free()
        self._alive.clear()

    def _follow(self, loop: Loop, larger: float) -> None:
        due: dict[int, list[Block]] = {}
        for i, size in enumerate(loop.sizes):
            for block in due.pop(i, []):
                self._let_go(block)
            made = self._take(int(size * larger))
            if made is not None:
                due.setdefault(loop.frees[i], []).append(made)
            if self._rng.random() < 0.0005:
                self._disturb()
        for blocks in due.values():
            for block in blocks:
                self._let_go(block)

    def _stray(self) -> None:
        rng = self._rng
        for _ in range(rng.randrange(1, 60)):
            made = self._take(rng.choice(SIZES))
            if made is not None:
                self._alive.append(made)
            while len(self._alive) > MOST_ALIVE or (
                self._alive and rng.random() < 0.49
            ):
                self._let_go(self._alive.pop(rng.randrange(len(self._alive))))

    def _take(self, size: int) -> Block | None:
        self.requests += 1
        try:
            made = Block(self._all.ledger, size)
        except torch.OutOfMemoryError:
            with self._all.lock:
                self._all.out_of_memory += 1
            return None
        if self._rng.random() < 0.1 and made.tensor is not None:
            made.tensor.record_stream(self._rng.choice(self._all.streams))
        return made

    def _let_go(self, block: Block) -> None:
        """Free it, or leave that to another thread."""
        if self._rng.random() < 0.01:
            self._all.handed.append(block)
            if len(self._all.handed) <= MOST_HANDED:
                return
            block = self._all.handed.popleft()
        block.free()

    def _disturb(self) -> None:
        """Another plan, or none for a while, or little memory, or as much as before."""
        rng, shared = self._rng, self._all
        stream, chance = rng.randrange(STREAMS), rng.random()
        if chance < 0.5:
            shared.load(stream, rng, later=rng.random() < 0.5)
        elif chance < 0.65:
            place = Place(0, stream + 1)
            CudaReplay(shared.native, place).stand_aside(rng.random() < 0.5)
        elif chance < 0.7:
            shared.native.retire()
            for each in range(STREAMS):
                shared.load(each, rng)
        elif chance < 0.8:
            most = torch.cuda.memory_reserved() * rng.choice([0.5, 0.8, 1.0, 1.2])
            whole = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(min(most / whole, 1.0))
        elif chance < 0.95:
            torch.cuda.set_per_process_memory_fraction(1.0)
        else:
            torch.cuda.empty_cache()


def run(shared: Shared, requests: int, seed: int, seconds: float) -> None:
    """All threads' programs, step by step, until there were so many requests, or for so
    many seconds."""
    end = time.monotonic() + seconds
    programs = [Program(shared, i, seed + i) for i in range(THREADS)]
    failures: list[BaseException] = []

    def done() -> None:
        shared.native.next_step()
        shared.requests = sum(program.requests for program in programs)
        shared.going = shared.requests < requests and time.monotonic() < end

    barrier = threading.Barrier(THREADS, action=done)

    def work(program: Program) -> None:
        try:
            while shared.going:
                program.step()
                barrier.wait()
            program.end()
        except threading.BrokenBarrierError:
            pass
        except BaseException as failure:  # told by the thread that waits
            failures.append(failure)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(each,)) for each in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    while shared.handed:
        shared.handed.popleft().free()


@contextmanager
def planned(rng: random.Random) -> Iterator[Shared]:
    """Plans on all streams, each of which has its number from here on."""
    library = cuda.usable_library(torch)
    take_slots(library, torch)
    shared = Shared(library, rng, [torch.cuda.Stream() for _ in range(STREAMS)])
    shared.loops = [random_loop(rng) for _ in range(STREAMS)]
    for stream in range(STREAMS):
        shared.load(stream, rng)
    library.serve(True)
    for stream in shared.streams:
        with torch.cuda.stream(stream):
            torch.empty(1, device="cuda")
    yield shared
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.synchronize()
    library.retire()
    torch.empty(1, device="cuda")  # which finds that other streams are done
    library.next_step()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("requests", type=int, nargs="?", default=1_000_000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    args = parser.parse_args()
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    with planned(random.Random(args.seed)) as shared:
        run(shared, args.requests, args.seed, args.seconds)
    stats = cuda.stats()[0]
    left = shared.native.blocks() + stats["arena_bytes"] + stats["stranded_blocks"]
    left += torch.cuda.memory_allocated() - before
    print(
        f"{shared.requests:,} requests, {stats['planned']:,} planned, "
        f"{stats['online']:,} placed in arenas, {stats['conflicts']:,} conflicts, "
        f"{shared.out_of_memory:,} out of memory; {shared.exchanged:,} exchanges; "
        f"arenas: {stats['arenas_made']:,} made, {stats['arenas_refused']:,} refused, "
        f"{stats['arenas_given_back']:,} given back when memory ran out; "
        f"{shared.ledger.overlaps} overlaps, {left} blocks and bytes left"
    )
    met = min(stats[f"arenas_{what}"] for what in ("made", "refused", "given_back"))
    sys.exit(bool(shared.ledger.overlaps or left or not met))


if __name__ == "__main__":
    main()
