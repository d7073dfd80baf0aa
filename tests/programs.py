"""Synthetic programs: traces of steps that repeat after a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from memplan.core.plan import Program
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo


@dataclass(frozen=True)
class Made:
    """One allocation of a step: bytes, and how many requests later it is freed.

    after: counted in requests of the program; None for never.
    """

    size: int
    after: int | None


Step = tuple[Made, ...]


def trace_of(steps: list[Step], *, alignment: int = 64, cut: bool = True) -> Trace:
    """The trace of a program that runs `steps` one after the other.

    A block due to be freed before the n-th request is freed right before it. With
    `cut`, step boundaries are marked.
    """
    requests = [made for step in steps for made in step]
    due: dict[int, list[int]] = {}
    for i, made in enumerate(requests):
        if made.after is not None:
            due.setdefault(i + 1 + made.after, []).append(i)
    rows: list[tuple[int, int, int, int]] = []  # action, mark, address, size
    position = 0
    for step in steps:
        if position and cut:
            rows.append((Action.STEP, Mark.OPTIMIZER, 0, 0))
        for made in step:
            rows += [free(i, requests) for i in due.pop(position, [])]
            rows.append((Action.ALLOC, Mark.NONE, 1 + position, made.size))
            position += 1
    rows += [free(i, requests) for i in due.pop(position, [])]
    events = events_of("action mark address size", rows)
    program = Program(script="p.py", marks="optimizer" if cut else "none")
    return Trace(events, info=TraceInfo(program=program, alignment=alignment))


def events_of(names: str, rows: Sequence[Sequence[int]], **more: Any) -> Columns:
    """Of rows with columns of these names, in order; more: other columns.

    The sizes are those that were requested, if nothing else is said.
    """
    own = names.split()
    columns = list(zip(*rows, strict=True)) or [()] * len(own)
    table: dict[str, Any] = {"time_ns": range(len(rows))}
    table |= dict(zip(own, columns, strict=True)) | more
    if "size" in table:
        table.setdefault("requested_size", table["size"])
    return Columns.of(**table)


def free(i: int, requests: list[Made]) -> tuple[int, int, int, int]:
    return Action.FREE_COMPLETED, Mark.NONE, 1 + i, requests[i].size


SIZES = st.sampled_from([1, 64, 100, 256, 1000, 4096])


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """A few odd steps, then a step (or two kinds in turn) that repeats.

    Blocks die in their step, in the next one (some only after their own successor
    was made), or never.
    """

    def step(count: int, reach: int) -> Step:
        lives = st.one_of(st.integers(0, reach), st.just(None) | st.integers(0, 3))
        return tuple(Made(draw(SIZES), draw(lives)) for _ in range(count))

    kinds = draw(st.integers(1, 2))
    count = draw(st.integers(1, 12))
    cycle = [step(count, int(1.8 * count)) for _ in range(kinds)]
    odd = [
        step(draw(st.integers(1, 10)), count) for _ in range(draw(st.integers(1, 3)))
    ]
    repeats = draw(st.integers(5, 7))
    return odd + cycle * repeats


@st.composite
def programs_of_kinds(draw: st.DrawFn) -> list[Step]:
    """A step that repeats, and then, in any order, some of up to three other kinds."""

    def step(count: int) -> Step:
        lives = st.one_of(st.integers(0, count), st.just(None), st.integers(0, 2))
        return tuple(Made(draw(SIZES), draw(lives)) for _ in range(count))

    hot = step(draw(st.integers(1, 10)))
    others = [step(draw(st.integers(1, 12))) for _ in range(draw(st.integers(1, 3)))]
    turns = st.lists(st.sampled_from([hot, hot, *others]), min_size=1, max_size=20)
    return [(Made(64, 0),), *[hot] * 4, *draw(turns), hot]


@st.composite
def programs_of_sizes(draw: st.DrawFn) -> list[Step]:
    """Steps whose requests and frees have one order, and sizes drawn anew each time."""
    count = draw(st.integers(1, 10))
    lives = draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    sizes = st.lists(st.integers(1, 4096), min_size=count, max_size=count)
    steps = draw(st.lists(sizes, min_size=6, max_size=12))
    return [(Made(64, 0),)] + [tuple(map(Made, some, lives)) for some in steps]
