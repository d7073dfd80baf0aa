"""From a recorded program to the plan that serves it, warm-up included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import UNMARKED, Plan, Source, StepKind, Warmup
from memplan.core.problem import FREE, Problem
from memplan.core.verify import warmup_with_first_step
from memplan.errors import NoPlanError
from memplan.limits import MAX_LANES
from memplan.solving.dry_run import forecast
from memplan.solving.methods import solve_problem
from memplan.solving.options import BEST, DEFAULTS, Options
from memplan.solving.placing import ORDERS, place_around
from memplan.trace.liveness import (
    HOT,
    KindWorkload,
    Neighbours,
    WarmupWorkload,
    step_problem,
)
from memplan.trace.reserved import device_run
from memplan.trace.steps import Together
from memplan.trace.streams import one_stream
from memplan.trace.trace import Trace

if TYPE_CHECKING:
    from memplan.native._alloc import Ranges

# Spare parts of an arena by lifespan: one in so many of the most live bytes is added.
SPARE_PARTS = (32, 24, 16, 12, 8, 6, 4)


def solve_trace(
    trace: Trace,
    method: str = "auto",
    *,
    step: str = "hot",
    alignment: int | None = None,
    source: Source | None = None,
    options: Options = DEFAULTS,
) -> Plan:
    """Plan one step of `trace`, and the steps before it, in one arena.

    step, alignment: as for `memplan.trace.liveness.step_problem`, whose errors it
    raises; for elastic steps `auto` is the best of best fit's priorities, unless there
    is a time limit. source: written into the plan. options: for the method, which also
    says what it raises.

    The hot step alone decides the arena's size, or of CUDA memory what all steps came
    to, where they are elastic, if that is less, or in no order. The warm-up before it
    is placed around the hot step's first pass; what does not fit is left to the default
    allocator, once.
    """
    found = step_problem(one_stream(trace), step, alignment)
    elastic = found.hot is not None and found.hot.elastic
    if elastic and method == "auto" and options.time_limit is None:
        # The sizes are the largest of many steps: a bound is no one step's, a proof
        # says nothing, and the loader recomputes offsets where sizes differ.
        method, options = "bestfit", replace(options, priority=BEST)
    plan = solve_problem(found.problem, method, options)
    program = trace.info.program
    if found.hot is None or found.unmarked:
        program = replace(program, marks=UNMARKED if found.unmarked else "none")
    plan = plan.coming_from(
        device=trace.info.device,
        source=source or Source(step=step),
        program=program,
        recorded=trace.info.run,
        recorded_device=device_run(trace.events),
    )
    plan = replace(plan, hot=replace(plan.hot, requests=found.requests))
    plan = replace(plan, kinds=plan_kinds(plan, found.kinds))
    plan = replace(
        plan,
        lanes=0 if found.together is None else _lanes(plan, found.together),
        elastic=elastic,
    )
    warmup = found.warmup
    if (varied := found.varied) is not None:
        arena = arena_by_lifespan(varied.blocks, varied.steps, plan.peak)
        plan = replace(plan, lifespan_bytes=arena)
        warmup = varied.start if arena else warmup
    if warmup is None:
        return plan
    plan = replace(plan, warmup=_place_warmup(plan, warmup))
    return _with_prediction(plan, trace) if trace.info.device == "cuda" else plan


def _with_prediction(plan: Plan, trace: Trace) -> Plan:
    """With what torch would reserve of the GPU, under it and otherwise, where that is
    known."""
    planned, expandable = forecast(trace, plan)
    run = plan.provenance.recorded_device
    run = replace(run, planned_bytes=planned, expandable_bytes=expandable)
    return plan.coming_from(recorded_device=run)


def _lanes(plan: Plan, together: Together) -> int:
    """As many lanes as threads held one at a time, if they came to as many bytes: more
    would keep more memory than the threads ever did."""
    room = round(together.most_bytes / max(plan.lane_bytes, 1))
    return max(1, min(together.threads, room, MAX_LANES))


def _place_warmup(plan: Plan, warmup: WarmupWorkload) -> Warmup:
    """The warm-up's buffers where the hot step's first pass leaves room for them.

    What finds no place is unplanned.
    """
    everything = np.zeros(len(warmup.problem), dtype=np.int64)
    draft = Warmup(warmup.problem, everything, warmup.requests, warmup.ticks)
    joint, offsets = warmup_with_first_step(plan, draft)
    count = len(warmup.problem)
    fixed = np.concatenate([np.full(count, FREE, dtype=np.int64), offsets[count:]])
    obstacles = Problem.of(
        joint.lower,
        joint.upper,
        joint.size,
        alignment=joint.alignment,
        fixed=fixed,
        rounding=joint.rounding,
    )
    tried = [
        place_around(obstacles, plan.warmup_room, order=order)[:count]
        for order in ORDERS
    ]
    left_out = [int(warmup.problem.size[placed < 0].sum()) for placed in tried]
    chosen = tried[int(np.argmin(left_out))]
    return replace(draft, offsets=chosen).keeping(np.flatnonzero(chosen >= 0))


def plan_kinds(plan: Plan, kinds: tuple[KindWorkload, ...]) -> tuple[StepKind, ...]:
    """A StepKind for each, in the arena of `plan`, which has the hot steps' offsets.

    Kinds may need a larger arena than the hot steps do.
    """
    planned: list[StepKind] = []
    for kind in kinds:
        near = _obstacles(plan, planned, kind.neighbours)
        offsets = _place(kind.problem, _served_before(plan, planned, kind), *near)
        planned.append(StepKind(kind.problem, offsets, kind.requests, len(kind.steps)))
    return tuple(planned)


def _served_before(
    plan: Plan, planned: list[StepKind], kind: KindWorkload
) -> Int64Array:
    """Offsets that buffers of `kind` get before the kind is recognised, or FREE."""
    served = _offsets_of(plan, planned, *kind.begins_as.T)
    # A buffer for each request of the kind; those of its first ones are served so.
    request = kind.requests.by_buffer()
    first = request < len(served)
    given = np.full(len(kind.problem), FREE, dtype=np.int64)
    given[first] = served[request[first]]
    return given


def _obstacles(
    plan: Plan, planned: list[StepKind], near: Neighbours
) -> tuple[Neighbours, Int64Array]:
    """The neighbours that have a place, and their offsets."""
    offsets = _offsets_of(plan, planned, near.kind, near.request)
    return near.take(offsets != FREE), offsets[offsets != FREE]


def _offsets_of(
    plan: Plan, planned: list[StepKind], kind: Int64Array, request: Int64Array
) -> Int64Array:
    """Where each request of a kind, or of the hot steps, is served; FREE if nowhere."""
    offsets = np.full(len(kind), FREE, dtype=np.int64)
    for number, placed in ((HOT, plan.hot), *enumerate(planned)):
        if placed.requests is not None:
            mine = kind == number
            placed_at = placed.requests.by_request(placed.offsets, FREE)
            offsets[mine] = placed_at[request[mine]]
    return offsets


def _place(
    problem: Problem, given: Int64Array, near: Neighbours, offsets: Int64Array
) -> Int64Array:
    """Offsets of `problem`'s buffers, shape (n,); the lower of two orders' peaks."""
    joint = Problem.of(
        np.concatenate([problem.lower, near.lower]),
        np.concatenate([problem.upper, near.upper]),
        np.concatenate([problem.size, near.size]),
        alignment=np.concatenate(
            [problem.alignment, np.ones(len(offsets), dtype=np.int64)]
        ),
        fixed=np.concatenate([given, offsets]),
    )
    count = len(problem)
    try:
        tried = [place_around(joint, order=order)[:count] for order in ORDERS]
    except NoPlanError:
        # Steps that request the same may free differently: then neighbours collide, and
        # the loader decides which of them gets the place.
        apart = _apart(joint)
        given = np.where(apart[:count], given, FREE)
        kept = apart[count:]
        return _place(problem, given, near.take(kept), offsets[kept])
    return min(tried, key=problem.peak)


def _apart(problem: Problem) -> BoolArray:
    """Which buffers with a fixed offset to keep, bool, shape (n,): one after the other,
    those that collide with none kept before."""
    kept = np.zeros(len(problem), dtype=np.bool_)
    low, high = problem.fixed, problem.fixed + problem.size
    for i in np.flatnonzero(problem.fixed != FREE):
        alive = (problem.lower < problem.upper[i]) & (problem.lower[i] < problem.upper)
        kept[i] = not (kept & alive & (low < high[i]) & (low[i] < high)).any()
    return kept


def arena_by_lifespan(blocks: Problem, steps: int, peak: int) -> int:
    """Bytes of the arena that serves `blocks` by lifespan with least memory, or 0 if
    offsets, which take `peak` bytes, need less.

    Offsets for steps of many sizes hold the largest of each block, which together is
    more than any one step takes; those for steps of a few kinds get in the way of what
    the step before, of another kind, has left. By lifespan, a block goes to the
    smallest hole that holds it, brief ones to the hole's high end and others to its low
    one, so that short-lived blocks do not fragment long-lived ones. The recorded steps
    are replayed that way in arenas of several sizes, by the code that places the
    program's blocks.

    blocks: of `steps` recorded steps, on a linear clock. Blocks that find no room in an
    arena need memory beside it. The spare part is for holes, and for larger steps to
    come: of k steps with evenly spread sizes, the largest possible one exceeds the
    largest seen by about one part in k.
    """
    most_live = lower_bound(blocks)
    unit = blocks.granularity
    parts = [part for part in SPARE_PARTS if part <= max(steps, SPARE_PARTS[-1])]
    arenas = [-(-(most_live + most_live // part) // unit) * unit for part in parts]
    needed = {arena: arena + beside(blocks, arena) for arena in arenas}
    best = min(arenas, key=needed.__getitem__)
    return 0 if best < needed[best] and most_live <= peak < needed[best] else best


def beside(blocks: Problem, arena: int) -> int:
    """The most bytes at one time of blocks that find no room in `arena` bytes."""
    from memplan.native._alloc import Ranges

    ranges: Ranges = Ranges(arena, blocks.granularity)
    count = len(blocks)
    # Frees first, though on a clock of requests and frees no two come at one time.
    order = np.argsort(np.concatenate([blocks.upper, blocks.lower]), kind="stable")
    taken, brief = blocks.taken.tolist(), blocks.brief.tolist()
    places = [0] * count
    now = most = 0
    for row in order.tolist():
        block, made = row % count, row >= count
        if made:
            places[block] = ranges.take_anywhere(taken[block], brief[block])
        elif places[block] >= 0:
            ranges.give_back(places[block])
        if places[block] < 0:
            now += taken[block] if made else -taken[block]
            most = max(most, now)
    return most
