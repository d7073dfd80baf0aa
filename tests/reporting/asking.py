"""A trace as a training program leaves it, without running one."""

from __future__ import annotations

from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Category, Mark, Trace, TraceInfo
from tests.programs import events_of

FILE = "/code/train.py"
STACKS = StackTable(
    [
        (Frame(FILE, 3, "build"),),
        (Frame(FILE, 12, "forward"),),
        (Frame(FILE, 20, "main"),),
        (Frame(FILE, 21, "main"),),
    ],
    [
        Origin("", "empty", Phase.OUTSIDE),
        Origin("blocks.0.fc", "linear", Phase.FORWARD),
        Origin("", "clone", Phase.OUTSIDE),
        Origin("", "empty", Phase.OUTSIDE),
    ],
)
ASKED = 1 << 40  # bytes, of the request that fails


def asking(
    steps: int, kept: int = 512, activation: int = 4096, asked: int = 0
) -> Trace:
    """Weights of 1000 bytes, and in every step an activation and a block that is kept.

    kept, activation: bytes of each. asked: of one that fails at the end, or 0.
    """
    rows = [
        (Action.ALLOC, 64, 1000, 0),
        (Action.LABEL, 64, int(Category.PARAMETERS), -1),
    ]
    for step in range(steps):
        rows.append((Action.ALLOC, 4096, activation, 1))
        if kept:
            rows.append((Action.ALLOC, 1 << 20 | step << 10, kept, 2))
        rows.append((Action.FREE_COMPLETED, 4096, activation, -1))
        rows.append((Action.STEP, 0, 0, -1))
    if asked:
        rows.append((Action.OOM, 0, asked, 3))
    marks = [Mark.OPTIMIZER if row[0] == Action.STEP else Mark.NONE for row in rows]
    times = range(0, 1_000_000 * len(rows), 1_000_000)
    events = events_of("action address size stack", rows, mark=marks, time_ns=times)
    return Trace(events, STACKS, TraceInfo(stacks="site"))
