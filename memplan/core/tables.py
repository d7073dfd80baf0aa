"""From a plan to the tables that the native loader goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.plan import UNMARKED, UNPLANNED, Plan

if TYPE_CHECKING:
    from memplan.native._alloc import Table

GROWN = 2  # times the arena, for departures of elastic steps


@dataclass(frozen=True, eq=False)
class ReplayArrays:
    """All requests of a plan, in the order: warm-up, hot steps, other kinds.

    sizes: exact bytes; offsets: bytes, -1 where the default allocator serves; shape
    (m,) each. starts: first index of each step, shape (s,). Steps [loop_begin,
    loop_end) repeat. elastic: per step, whether requests are told by their place.
    sparse: per request, whether its pages go back when it is freed, shape (m,).
    unmarked: no marks cut the steps, the requests themselves tell where one begins.
    brief: per request, whether its block is freed soon, shape (m,), where blocks lie by
    how long they live, as on CUDA they may; None: at their offsets.
    """

    sizes: Int64Array
    offsets: Int64Array
    starts: Int64Array
    loop_begin: int
    loop_end: int
    elastic: list[bool]
    sparse: BoolArray
    unmarked: bool = False
    brief: BoolArray | None = None

    def table(
        self, arena_bytes: int, online_bytes: int, *, cuda: bool = False
    ) -> Table:
        """The native table, for an arena of so many bytes.

        online_bytes: requests that depart from the plan are placed below this. cuda:
        requests are rounded as on CUDA, and lie by lifespan if `brief` is there.
        """
        from memplan.native import _alloc

        return _alloc.table(
            self.sizes,
            self.offsets,
            self.starts,
            self.loop_begin,
            self.loop_end,
            np.array(self.elastic, dtype=np.bool_),
            self.sparse,
            arena_bytes,
            online_bytes,
            self.unmarked,
            self.brief if cuda else None,
            cuda,
        )


def replay_arrays(
    plan: Plan, *, warmup: bool = True, sparse: BoolArray | None = None
) -> ReplayArrays:
    """The arrays of `plan`; without its warm-up for a program already in its loop.

    sparse: which buffers of the hot steps are touched only in part, shape (n,).
    """
    if sparse is None:
        sparse = np.zeros(len(plan.problem), dtype=np.bool_)
    none = np.empty(0, dtype=np.int64)
    returns, brief = [none.astype(np.bool_)], [none.astype(np.bool_)]
    sizes, offsets, starts = [none], [none], [none]
    before = loop_begin = loop_end = 0
    for placed in plan.placements:
        requests = placed.requests
        if requests is None or (placed is plan.warmup and not warmup):
            continue
        if placed is plan.hot:
            loop_begin = sum(map(len, starts))
            loop_end = loop_begin + len(requests.starts)
        returned = sparse if placed is plan.hot else np.zeros_like(placed.offsets, bool)
        sizes.append(requests.size)
        offsets.append(requests.by_request(placed.offsets, UNPLANNED))
        returns.append(requests.by_request(returned, False))
        if plan.lifespan_bytes:
            brief.append(requests.by_request(placed.problem.brief, False))
        starts.append(np.array(requests.starts, dtype=np.int64) + before)
        before += len(requests)
    steps = range(sum(map(len, starts)))
    return ReplayArrays(
        np.concatenate(sizes).astype(np.int64),
        np.concatenate(offsets).astype(np.int64),
        np.concatenate(starts),
        loop_begin,
        loop_end,
        [plan.elastic and loop_begin <= step < loop_end for step in steps],
        np.concatenate(returns),
        plan.provenance.program.marks == UNMARKED,
        np.concatenate(brief) if plan.lifespan_bytes else None,
    )


def joined(first: ReplayArrays, second: ReplayArrays) -> ReplayArrays:
    """`first`, whose steps go on repeating, and the repeated steps of `second` and its
    other kinds as more kinds. Neither may have a warm-up; elastic steps are left out:
    their requests do not tell them from others."""
    assert first.loop_begin == second.loop_begin == 0
    ends = np.append(second.starts[1:], len(second.sizes))
    kept = [i for i, elastic in enumerate(second.elastic) if not elastic]
    rows = [np.arange(second.starts[i], ends[i]) for i in kept]
    chosen = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    brief = np.zeros(len(second.sizes), bool) if second.brief is None else second.brief
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    begins = len(first.sizes) + np.cumsum(lengths) - lengths
    return ReplayArrays(
        np.concatenate([first.sizes, second.sizes[chosen]]),
        np.concatenate([first.offsets, second.offsets[chosen]]),
        np.concatenate([first.starts, begins]),
        first.loop_begin,
        first.loop_end,
        [*first.elastic, *[False] * len(kept)],
        np.concatenate([first.sparse, second.sparse[chosen]]),
        brief=None if first.brief is None else np.append(first.brief, brief[chosen]),
    )


def room_for_departures(plan: Plan, arena_bytes: int, reserved: int) -> int:
    """Below how many bytes of the arena requests that depart from `plan` are placed.

    Those of an elastic plan may be its own, grown: they get as much again as was
    planned, if that is reserved. More than that is another part of the program, whose
    pages the default allocator has kept from the last time.
    """
    return min(GROWN * arena_bytes, reserved) if plan.elastic else arena_bytes
