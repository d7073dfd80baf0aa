"""Threads that make steps side by side: each has a sequence of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.core.planfile import dump_plan, load_plan
from memplan.core.verify import verify
from memplan.errors import FormatError
from memplan.limits import MAX_LANES
from memplan.solving.from_trace import solve_trace
from memplan.solving.outlook import unplanned_bytes
from memplan.trace.liveness import step_problem
from memplan.trace.lives import lives_of
from memplan.trace.steps import outlives, steps_by_thread
from memplan.trace.trace import Action, Mark, Trace
from tests.programs import events_of

Event = tuple[Action, Mark, int, int, int]  # and address, size, thread

SIZES = (4096, 8192, 1024)
STEP_BYTES = 4096 + 8192  # at most alive in a step: the last is made when all are gone


def steps_of(thread: int, steps: int, sizes: tuple[int, ...] = SIZES) -> list[Event]:
    """Two blocks side by side, freed, then one."""
    events: list[Event] = []
    for step in range(steps):
        first = (thread * 1000 + step) * 100
        events.append((Action.STEP, Mark.FORWARD, 0, 0, thread))
        for i, size in enumerate(sizes[:-1]):
            events.append((Action.ALLOC, Mark.NONE, 64 * (first + i), size, thread))
        for i, _ in enumerate(sizes[:-1]):
            freed = 64 * (first + i)
            events.append((Action.FREE_COMPLETED, Mark.NONE, freed, 0, thread))
        last = 64 * (first + 50)
        events.append((Action.ALLOC, Mark.NONE, last, sizes[-1], thread))
        events.append((Action.FREE_COMPLETED, Mark.NONE, last, 0, thread))
    return events


def trace_of(events: list[Event]) -> Trace:
    sizes = {a: s for action, _, a, s, _ in events if action is Action.ALLOC}
    freed = [sizes.get(address, size) for _, _, address, size, _ in events]
    return Trace(events_of("action mark address size thread", events, size=freed))


def shuffled(parts: list[list[Event]], seed: int) -> list[Event]:
    """The parts side by side, each in its own order."""
    chance = random.Random(seed)
    turns = [i for i, part in enumerate(parts) for _ in part]
    chance.shuffle(turns)
    sources: list[Iterator[Event]] = [iter(part) for part in parts]
    return [next(sources[i]) for i in turns]


@given(st.integers(2, 5), st.integers(4, 7), st.integers(0, 1 << 30))
def test_threads_side_by_side_are_planned_as_one_of_them(
    threads: int, steps: int, seed: int
) -> None:
    parts = [steps_of(i + 1, steps) for i in range(threads)]
    trace = trace_of(shuffled(parts, seed))
    if steps_by_thread(lives_of(trace)) is None:
        return  # by chance hardly any of them met
    alone = step_problem(trace_of(steps_of(1, steps)))
    found = step_problem(trace)
    assert found.problem.fingerprint() == alone.problem.fingerprint()
    assert found.kinds == ()
    assert found.together is not None
    assert 1 <= found.together.threads <= threads
    assert found.together.most_bytes <= threads * STEP_BYTES
    plan = solve_trace(trace)
    assert not verify(plan)
    assert plan.peak == STEP_BYTES
    assert 1 <= plan.lanes <= found.together.threads
    assert plan.arena_bytes == plan.lanes * STEP_BYTES
    assert plan.warmup is None
    again = load_plan(dump_plan(plan))
    assert again.lanes == plan.lanes
    assert dump_plan(again) == dump_plan(plan)


def test_in_lock_step_each_thread_has_a_lane() -> None:
    parts = [steps_of(i, 6) for i in (1, 2, 3)]
    events = [event for turn in zip(*parts, strict=True) for event in turn]
    plan = solve_trace(trace_of(events))
    assert (plan.lanes, plan.arena_bytes) == (3, 3 * STEP_BYTES)


def test_what_the_main_thread_made_outside_of_steps_is_persistent() -> None:
    def made(address: int, size: int) -> Event:
        return Action.ALLOC, Mark.NONE, address, size, 9

    def freed(address: int) -> Event:
        return Action.FREE_COMPLETED, Mark.NONE, address, 0, 9

    weights, inputs, early, late = 9_000_000, 9_000_010, 9_000_020, 9_000_030
    before = [made(weights, 1 << 20), made(inputs, 4000), made(early, 70)]
    gone = [made(9_000_040, 50), freed(9_000_040), made(late, 90)]
    parts = [steps_of(i, 8) for i in (1, 2)]
    kept: Event = (Action.ALLOC, Mark.NONE, 9_000_050, 300, 2)
    parts[1].insert(2, kept)  # by a worker, in its first step
    parts.reverse()
    turns = [list(turn) for turn in itertools.zip_longest(*parts)]
    turns[10] = [freed(early), *turns[10]]  # in the second step: the first hot one
    turns[40] = [freed(late), *turns[40]]  # in the sixth
    events = [event for turn in turns for event in turn if event is not None]
    trace = trace_of([*before, *gone, *events, made(9_000_060, 60), freed(weights)])
    stay = (1 << 20) + 4000 + 90 + 300
    line = lives_of(trace)
    assert line.size[outlives(line)].sum() == stay + 60
    found = step_problem(trace)
    assert found.together is not None
    assert found.persistent_bytes == stay
    assert unplanned_bytes(trace) == stay


def test_threads_that_never_meet_are_one_sequence() -> None:
    parts = [steps_of(i, 6) for i in (1, 2, 3)]
    trace = trace_of(list(itertools.chain(*parts)))
    assert steps_by_thread(lives_of(trace)) is None
    assert solve_trace(trace).lanes == 0


def test_a_thread_that_marks_nothing_belongs_to_the_one_that_does() -> None:
    # As autograd's threads do in a training loop: half of a step's blocks are theirs.
    alone = steps_of(1, 6)
    helped = [
        (*event[:4], 2 if event[0] is not Action.STEP and i % 2 else 1)
        for i, event in enumerate(alone)
    ]
    assert steps_by_thread(lives_of(trace_of(helped))) is None
    assert solve_trace(trace_of(helped)).lanes == 0


def test_a_block_that_another_thread_frees_is_its_makers() -> None:
    parts = [steps_of(i, 6) for i in (1, 2)]
    events = [event for turn in zip(*parts, strict=True) for event in turn]
    freed = [(*e[:4], 9) if e[0] is Action.FREE_COMPLETED else e for e in events]
    plan, other = solve_trace(trace_of(events)), solve_trace(trace_of(freed))
    assert (other.lanes, other.peak) == (plan.lanes, plan.peak) == (2, STEP_BYTES)


def test_threads_of_two_sizes_have_lanes_for_the_larger() -> None:
    small = (512, 256, 128)
    parts = [steps_of(1, 6), steps_of(2, 6, small), steps_of(3, 6, small)]
    events = [event for turn in zip(*parts, strict=True) for event in turn]
    plan = solve_trace(trace_of(events))
    assert not verify(plan)
    assert len(plan.kinds) == 1
    # Three such lanes would hold more than the threads ever did.
    assert plan.lane_bytes == STEP_BYTES
    assert plan.lanes == 1


def lane_plan() -> bytes:
    parts = [steps_of(i, 6) for i in (1, 2)]
    events = [event for turn in zip(*parts, strict=True) for event in turn]
    return dump_plan(solve_trace(trace_of(events)))


@pytest.mark.parametrize("lanes", [-1, MAX_LANES + 1])
def test_a_plan_with_too_many_lanes_is_not_written(lanes: int) -> None:
    plan = replace(load_plan(lane_plan()), lanes=lanes)
    with pytest.raises(FormatError, match=f"lanes is {lanes}, and must be 1 to"):
        dump_plan(plan)


def test_a_plan_with_lanes_has_no_warm_up() -> None:
    plan = load_plan(lane_plan())
    alone = solve_trace(trace_of(steps_of(1, 6)))
    assert alone.warmup is not None
    with pytest.raises(FormatError, match="a plan with lanes has no warm-up"):
        dump_plan(replace(plan, warmup=alone.warmup))
