"""From a recorded program to the plan that serves it, warm-up included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.core.placement import Warmup
from memplan.core.plan import UNMARKED, Plan, Source
from memplan.core.problem import FREE, Problem
from memplan.core.verify import warmup_with_first_step
from memplan.limits import MAX_LANES
from memplan.solving.greedy import place_around
from memplan.solving.lifespans import arena_by_lifespan
from memplan.solving.methods import solve_problem
from memplan.solving.options import DEFAULTS, Options
from memplan.solving.step_kinds import plan_kinds
from memplan.trace.liveness import WarmupWorkload, step_problem
from memplan.trace.reserved import device_run
from memplan.trace.streams import one_stream
from memplan.trace.threads import Together
from memplan.trace.trace import Trace


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
    raises; `auto` is `skyline` for elastic steps, unless there is a time limit.
    source: written into the plan. options: for the method, which also says
    what it raises.

    The hot step alone decides the arena's size, or of CUDA memory what all steps came
    to, where they are elastic, if that is less, or in no order. The warm-up before it
    is placed around the hot step's first pass; what does not fit is left to the default
    allocator, once.
    """
    found = step_problem(one_stream(trace), step, alignment)
    elastic = found.hot is not None and found.hot.elastic
    if elastic and method == "auto" and options.time_limit is None:
        # The sizes are the largest of many steps: a bound is no one step's, a proof
        # says nothing, and the loader will find offsets anew where sizes differ.
        method = "skyline"
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
    return replace(plan, warmup=_place_warmup(plan, warmup))


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
        for order in ("lifetime", "size")
    ]
    left_out = [int(warmup.problem.size[placed < 0].sum()) for placed in tried]
    chosen = tried[int(np.argmin(left_out))]
    return replace(draft, offsets=chosen).keeping(np.flatnonzero(chosen >= 0))
