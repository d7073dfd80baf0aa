"""Random programs run as they are, and under plans of other programs.

    python -m tests.attacks.adversary FIRST COUNT

Each run is a forked child of this process, which has torch loaded: its peak is what it
adds to the resident memory it was forked with. Prints one JSON object a program.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
from bisect import bisect, insort
from dataclasses import dataclass, field
from typing import Any

import torch

import memplan
from memplan.applying.session import Loader
from memplan.core.plan import Plan
from memplan.errors import MemplanError
from memplan.native import _alloc
from memplan.recording.usage import peak_resident_bytes, resident_bytes
from memplan.solving.from_trace import solve_trace
from tests.attacks.adversary_programs import MIB, Turn, program, trace_of

STRIDE = 512  # bytes; every page is written, and every block looked at in many places
SMALL = [Turn(0, (("ask", 1, 4096), ("free", 1, 0)))]


@dataclass
class Memory:
    """The blocks alive: no two may overlap, and each keeps what was written to it."""

    blocks: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    overlaps: int = 0
    spoiled: int = 0
    results: Any = field(default_factory=hashlib.sha256)

    def ask(self, name: int, size: int) -> None:
        """A new block, written to."""
        block = torch.empty(size, dtype=torch.uint8)
        begin = block.data_ptr()
        place = bisect(self.ranges, (begin, begin + size))
        before = place > 0 and self.ranges[place - 1][1] > begin
        after = place < len(self.ranges) and self.ranges[place][0] < begin + size
        self.overlaps += before or after
        insort(self.ranges, (begin, begin + size))
        mark = name % 251 + 1
        block.numpy()[::STRIDE] = mark
        self.blocks[name] = (block, mark)

    def free(self, name: int) -> None:
        """That block is no more, and is as it was written."""
        block, mark = self.blocks.pop(name)
        found = block.numpy()[::STRIDE]
        self.spoiled += bool((found != mark).any())
        self.results.update(int(found.sum(dtype="int64")).to_bytes(8, "little"))
        begin = block.data_ptr()
        del self.ranges[bisect(self.ranges, (begin, 0))]


def perform(turns: list[Turn], memory: Memory) -> None:
    """Run the program: its threads are real, and take turns."""
    count = max(turn.thread for turn in turns) + 1
    ready = [threading.Semaphore(0) for _ in range(count)]
    failures: list[BaseException] = []
    ended = threading.Semaphore(0)

    def play(turn: Turn) -> None:
        for deed, name, size in turn.deeds:
            if deed == "ask":
                memory.ask(name, size)
            elif deed == "free":
                memory.free(name)
            else:
                memplan.step()

    def work(number: int) -> None:
        try:
            for place, turn in enumerate(turns):
                if turn.thread == number:
                    ready[number].acquire()
                    play(turn)
                    hand_on(place + 1)
        except BaseException as error:  # told by the main thread
            failures.append(error)
            ended.release()

    def hand_on(place: int) -> None:
        (ready[turns[place].thread] if place < len(turns) else ended).release()

    # As a program's first thread is its main thread, so here, where there is but one.
    if count == 1:
        for turn in turns:
            play(turn)
        return
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    hand_on(0)
    ended.acquire()
    if failures:
        raise failures[0]


def measured(turns: list[Turn], plan: Plan | None) -> dict[str, Any]:
    """A run in this process: bytes that its peak adds, and what it computed."""
    perform(SMALL, Memory())  # what it loads is not counted
    memory = Memory()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
        stream.write("5")
    before = resident_bytes()
    loader = None
    if plan is not None:
        loader = Loader(plan)
        loader.start()
    perform(turns, memory)
    peak = peak_resident_bytes() - before
    tensors = _alloc.tensor_bytes()
    found: dict[str, Any] = {
        "peak": peak,
        "overlaps": memory.overlaps,
        "spoiled": memory.spoiled,
        "results": memory.results.hexdigest(),
    }
    if loader is not None:
        loader.stop()
        report = loader.report()
        found |= {
            "most_live": tensors["most_live"],
            "requests": report.requests,
            "planned": report.planned_requests,
            "conflicts": report.conflicts,
            "replans": len(report.replans),
            "arena_resident": 0 if report.memory is None else report.memory.arena,
        }
    return found


def in_child(turns: list[Turn], plan: Plan | None) -> dict[str, Any]:
    """What `measured` says, in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(measured(turns, plan)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or not data:
        return {"failed": os.waitstatus_to_exitcode(status)}
    found: dict[str, Any] = json.loads(data)
    return found


def another(seed: int) -> tuple[str, Plan]:
    """A plan that is not this program's: of the next ones, the first that has one."""
    rng = random.Random(~seed)
    while True:
        other = rng.randrange(1 << 30)
        how, turns = program(other)
        try:
            plan = solve_trace(trace_of(turns), "bestfit")
        except MemplanError:  # nothing in it repeats
            continue
        if plan.hot.requests is not None and plan.provenance.program.marks != "none":
            return f"program {other} ({how.name})", plan


def run(seed: int) -> dict[str, Any]:
    """The program with this seed, alone and under another's plan."""
    how, turns = program(seed)
    name, plan = another(seed)
    return {
        "seed": seed,
        "program": how.name,
        "plan": f"{name}, arena {plan.arena_bytes / MIB:.1f} MiB",
        "default": in_child(turns, None),
        "planned": in_child(turns, plan),
    }


def main() -> None:
    first, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    # What each run would otherwise load, and count as its own.
    perform(SMALL, Memory())
    another(0)
    for seed in range(first, first + count):
        print(json.dumps(run(seed)), flush=True)


if __name__ == "__main__":
    main()
