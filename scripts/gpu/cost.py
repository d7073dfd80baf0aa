"""What `torch.empty` and its free cost under a plan: turns with the plan and without.

    python scripts/gpu/cost.py

The plan is of a loop of 64 requests, half of which live on over others. Prints the
least microseconds of a request and its free either way, and their ratio.
"""

from __future__ import annotations

import time

import torch

from memplan.applying.cuda import CudaLoader
from memplan.recording.boundary import step
from memplan.solving.from_trace import solve_trace
from memplan.trace.importers.snapshot import HistoryMark, from_snapshot
from memplan.trace.trace import Mark

SIZES = [((i * 7919) % 61 + 1) << 12 for i in range(64)]
ROUNDS, STEPS = 60, 100


def loop() -> None:
    held = []
    for i, size in enumerate(SIZES):
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        if i % 2:
            held.append(block)


def turn(marked: bool) -> float:
    begun = time.perf_counter()
    for _ in range(STEPS):
        loop()
        if marked:
            step()
    return (time.perf_counter() - begun) / (STEPS * len(SIZES)) * 1e6


def main() -> None:
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    marks = []
    for _ in range(4):
        loop()
        marks.append(HistoryMark(Mark.EXPLICIT, time.time_ns() // 1000))
        time.sleep(0.01)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    plan = solve_trace(from_snapshot(snapshot, device=0, marks=marks).trace, "auto")
    native, planned, counts = [], [], None
    for _ in range(ROUNDS):
        native.append(turn(False))
        loader = CudaLoader(plan, replan=False)
        loader.start()
        for _ in range(3):
            loop()
            step()
        planned.append(turn(True))
        counts = loader.report()
        loader.stop()
    share = counts.planned_requests / counts.requests if counts else 0.0
    print(
        f"native {min(native):.3f} us, planned {min(planned):.3f} us ({share:.1%} of "
        f"requests at their offsets), ratio {min(planned) / min(native):.3f}"
    )


if __name__ == "__main__":
    main()
