"""Traces to make pages of."""

from __future__ import annotations

import numpy as np

from memplan.core.plan import Program
from memplan.trace.category import Category
from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;'\"\u2028"


def loop(
    steps: int = 5, layers: int = 8, *, labels: bool = True, oom: int = 0
) -> Trace:
    """A training loop: parameters, then in every step activations and their frees.

    oom: bytes of a request that failed at the end, if not 0.
    """
    rows: list[
        tuple[int, int, int, int, int]
    ] = []  # action, address, size, mark, stack
    for k in range(layers):
        rows.append((Action.ALLOC, 1 << 20 | k << 12, 4096 * (k + 1), 0, 0))
        if labels:
            rows.append((Action.LABEL, 1 << 20 | k << 12, Category.PARAMETERS, 0, -1))
    for _ in range(steps):
        rows.append((Action.STEP, 0, 0, Mark.OPTIMIZER, -1))
        for k in range(layers):
            rows.append((Action.ALLOC, 2 << 20 | k << 14, 16384, 0, 1 + k % 2))
            rows.append((Action.ALLOC, 3 << 20, 512, 0, 3))
            rows.append((Action.FREE_COMPLETED, 3 << 20, 512, 0, -1))
        for k in reversed(range(layers)):
            rows.append((Action.FREE_COMPLETED, 2 << 20 | k << 14, 16384, 0, -1))
    if oom:
        rows.append((Action.OOM, 0, oom, 0, 1))
    return traced(rows, stacks())


def stacks(name: str = "model.py") -> StackTable:
    """Four stacks, with what ran there."""
    main = Frame("/home/me/train.py", 10, "main")
    return StackTable(
        [
            (Frame(f"/home/me/{name}", 3, "__init__"), main),
            (Frame(f"/home/me/{name}", 7, "forward"), main),
            (Frame(f"/home/me/{name}", 9, "forward"), main),
            (main,),
        ],
        [
            Origin("", "", Phase.OUTSIDE),
            Origin("layers.0", "linear", Phase.FORWARD),
            Origin("layers.1", "gelu", Phase.FORWARD),
            Origin("", "AddmmBackward0", Phase.BACKWARD),
        ],
    )


def traced(
    rows: list[tuple[int, int, int, int, int]],
    table: StackTable,
    script: str = "train.py",
) -> Trace:
    """A trace of rows (action, address, size, mark, stack), a microsecond apart."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5)
    events = Columns.of(
        time_ns=np.arange(len(columns), dtype=np.int64) * 1000,
        action=columns[:, 0],
        address=columns[:, 1].astype(np.uint64),
        size=columns[:, 2],
        requested_size=columns[:, 2],
        mark=columns[:, 3],
        stack=columns[:, 4],
    )
    info = TraceInfo(program=Program(script=script, torch="2.13.0"), stacks="python")
    return Trace(events, table, info)


def many(buffers: int, seed: int = 0) -> Trace:
    """So many buffers of all sizes, each freed after a while, at addresses of its own
    class."""
    rng = np.random.default_rng(seed)
    begin = np.sort(rng.integers(0, 10 * buffers, buffers))
    end = begin + rng.geometric(1 / 4000, buffers)
    size = (2 ** rng.uniform(6, 22, buffers)).astype(np.int64)
    time = np.concatenate([begin, end])
    action = np.repeat([Action.ALLOC, Action.FREE_COMPLETED], buffers)
    place = rng.permutation(buffers).astype(np.uint64) << np.uint64(22)
    order = np.lexsort((np.arange(2 * buffers), time))
    stack = np.concatenate([np.arange(buffers) % 4, np.full(buffers, -1)])
    events = Columns.of(
        time_ns=np.arange(2 * buffers, dtype=np.int64) * 700,
        action=action[order],
        address=np.tile(place, 2)[order],
        size=np.tile(size, 2)[order],
        requested_size=np.tile(size, 2)[order],
        stack=stack[order],
    )
    return Trace(events, stacks(), TraceInfo(program=Program(script="many.py")))


def hostile() -> Trace:
    """Names that would be elements, scripts and ends of scripts."""
    return traced(
        [(Action.ALLOC, 1 << 20, 64, 0, 1), (Action.ALLOC, 2 << 20, 64, 0, 0)],
        stacks(HOSTILE),
        HOSTILE,
    )
