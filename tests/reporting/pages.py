"""Traces to make pages of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

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
        rows.append((Action.ALLOC, 1 << 20 | k << 16, 4096 * (k + 1), 0, 0))
        if labels:
            rows.append((Action.LABEL, 1 << 20 | k << 16, Category.PARAMETERS, 0, -1))
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


def of_kinds() -> Trace:
    """Steps of two blocks each, after one and around one of other sizes."""
    rows: list[tuple[int, int, int, int, int]] = []
    hot = (4096, 8192)
    for sizes in ((512,), *[hot] * 4, (1024, 2048, 16384), *[hot] * 3):
        rows.append((Action.STEP, 0, 0, Mark.OPTIMIZER, -1))
        for k, size in enumerate(sizes):
            rows.append((Action.ALLOC, 1 << 20 | k << 16, size, 0, k))
            rows.append((Action.LABEL, 1 << 20 | k << 16, Category.INPUTS, 0, -1))
        for k, size in enumerate(sizes):
            rows.append((Action.FREE_COMPLETED, 1 << 20 | k << 16, size, 0, -1))
    return traced(rows, stacks())


def of_threads(threads: int = 2, steps: int = 6) -> Trace:
    """Threads that take turns, all in the midst of a step when the next one goes on."""
    rows: list[tuple[int, int, int, int, int]] = []
    thread: list[int] = []

    def add(at: int, *row: int) -> None:
        action, address, size, mark, stack = row
        rows.append((action, address, size, mark, stack))
        thread.append(at + 1)

    for _ in range(steps):
        for at in range(threads):
            add(at, Action.STEP, 0, 0, Mark.FORWARD, -1)
            add(at, Action.ALLOC, 1 << 20 | at << 16, 4096, 0, 1)
            add(at, Action.LABEL, 1 << 20 | at << 16, Category.ACTIVATIONS, 0, -1)
        for at in range(threads):
            add(at, Action.ALLOC, 2 << 20 | at << 16, 8192, 0, 2)
            add(at, Action.LABEL, 2 << 20 | at << 16, Category.ACTIVATIONS, 0, -1)
            add(at, Action.FREE_COMPLETED, 1 << 20 | at << 16, 4096, 0, -1)
        for at in range(threads):
            add(at, Action.FREE_COMPLETED, 2 << 20 | at << 16, 8192, 0, -1)
    trace = traced(rows, stacks())
    return replace(trace, events=replace(trace.events, thread=np.array(thread)))


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
    """So many buffers of all sizes, freed after a while, their rooms used anew."""
    rng = np.random.default_rng(seed)
    begin = np.sort(rng.integers(0, 10 * buffers, buffers))
    end = begin + rng.geometric(1 / 4000, buffers)
    size = (2 ** rng.uniform(6, 22, buffers)).astype(np.int64)
    action = np.repeat([Action.ALLOC, Action.FREE_COMPLETED], buffers)
    order = np.lexsort((np.arange(2 * buffers), np.concatenate([begin, end])))
    rooms = np.log2(size).astype(int) + 1
    stack = np.concatenate([np.arange(buffers) % 4, np.full(buffers, -1)])
    events = Columns.of(
        time_ns=np.arange(2 * buffers, dtype=np.int64) * 700,
        action=action[order],
        address=_placed(rooms.tolist(), order.tolist())[order],
        size=np.tile(size, 2)[order],
        requested_size=np.tile(size, 2)[order],
        stack=stack[order],
    )
    return Trace(events, stacks(), TraceInfo(program=Program(script="many.py")))


def _placed(rooms: list[int], order: list[int]) -> npt.NDArray[np.uint64]:
    """Addresses of buffers in rooms of 2^k bytes, and again of their frees."""
    free: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    place = [0] * len(rooms)
    for event in order:
        k = event % len(rooms)
        room = rooms[k]
        if event >= len(rooms):
            free.setdefault(room, []).append(place[k])
            continue
        if not free.get(room):
            number = used[room] = used.get(room, 0) + 1
            free.setdefault(room, []).append((room << 44) + (number << room))
        place[k] = free[room].pop()
    return np.tile(np.array(place, dtype=np.uint64), 2)


def hostile() -> Trace:
    """Names that would be elements, scripts and ends of scripts."""
    return traced(
        [(Action.ALLOC, 1 << 20, 64, 0, 1), (Action.ALLOC, 2 << 20, 64, 0, 0)],
        stacks(HOSTILE),
        HOSTILE,
    )
