"""When blocks of CUDA memory lie by how long they live, and in how many bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memplan
from memplan.core.plan import Plan
from memplan.core.problem import BRIEF, Problem
from memplan.core.tables import joined, replay_arrays
from memplan.core.verify import verify
from memplan.solving.from_trace import SPARE_PARTS, arena_by_lifespan, beside
from memplan.trace.liveness import step_problem
from memplan.trace.trace import Trace
from tests.programs import Made, Step, trace_of
from tests.strategies import examples

UNIT = 64
# Of a step's two large blocks one is large at a time; the last ones die at once.
LENGTHS = [(4096, 64), (64, 4096), (2048, 2048), (1024, 3000), (4000, 100)]
START = (Made(64, 0),) * 5


def on_cuda(steps: list[Step]) -> Trace:
    trace = trace_of(steps)
    return replace(trace, info=replace(trace.info, device="cuda"))


def step_of(first: int, second: int) -> Step:
    brief = (Made(64, 0),) * (BRIEF // 2 + 1)
    return (Made(first, 9), Made(second, 8), *brief)


def elastic_plan(start: Step = START) -> Plan:
    plan = memplan.solve(on_cuda([start, *(step_of(*both) for both in LENGTHS)]))
    assert plan.elastic
    return plan


# ---- the plan


def test_the_arena_holds_what_was_alive_at_one_time_and_a_little() -> None:
    plan = elastic_plan()
    assert plan.peak >= 4096 + 4096
    # 4,160 bytes of the large ones at the most, and two brief ones.
    least, part = 4160, SPARE_PARTS[-1]
    assert least < plan.arena_bytes <= (least + 2 * UNIT) * (part + 1) // part + UNIT
    assert plan.lifespan_bytes == plan.arena_bytes
    assert verify(plan) == []


def test_the_warm_up_has_none_of_the_steps_that_vary() -> None:
    # Of another order than those that repeat, which begin later then.
    odd = (*step_of(64, 64), Made(64, 0))
    trace = on_cuda([START, odd, *(step_of(*both) for both in LENGTHS)])
    plan = memplan.solve(trace)
    assert plan.elastic
    assert plan.warmup is not None
    assert len(plan.warmup.requests) == len(START)
    cpu = memplan.solve(replace(trace, info=replace(trace.info, device="cpu")))
    assert cpu.warmup is not None
    assert len(cpu.warmup.requests) == len(START) + len(odd)


def test_what_a_program_starts_with_does_not_count() -> None:
    large = (Made(20_000, 3), *[Made(64, 0)] * 4)
    assert elastic_plan(large).arena_bytes == elastic_plan().arena_bytes


def test_a_step_of_another_order_counts() -> None:
    evaluation = (Made(9000, 0), *step_of(64, 64))
    steps = [START, evaluation, *(step_of(*both) for both in LENGTHS)]
    assert memplan.solve(on_cuda(steps)).arena_bytes > 9000


def test_a_plan_of_the_cpu_or_of_equal_steps_has_offsets_only() -> None:
    steps = [step_of(*both) for both in LENGTHS]
    cpu = memplan.solve(trace_of([START, *steps]))
    assert cpu.elastic
    equal = memplan.solve(on_cuda([step_of(64, 64)] * 4))
    assert not equal.elastic
    for plan in (cpu, equal):
        assert plan.lifespan_bytes == 0
        assert plan.arena_bytes == plan.lane_bytes
        assert replay_arrays(plan).brief is None


@pytest.mark.parametrize("count", [3, 4, 9])
def test_a_first_step_that_frees_otherwise_is_of_the_loop(count: int) -> None:
    """As where an optimizer's first step keeps gradients that later ones replace."""
    usual = step_of(64, 64)
    first = (Made(64, 10), *usual[1:])
    plan = memplan.solve(on_cuda([START, first, *[usual] * count, START]))
    assert not plan.elastic
    assert plan.lifespan_bytes == 0


# Each of another number of requests.
SHAPES = (
    step_of(4096, 64),
    (*step_of(64, 4096), Made(64, 0)),
    (*step_of(64, 64), Made(2048, 0), Made(64, 0)),
)


def in_order(numbers: str) -> Trace:
    return on_cuda([START, *(SHAPES[int(number)] for number in numbers)])


@pytest.mark.parametrize("numbers", ["001200102110", "000011112222", "012211000202"])
def test_steps_of_a_few_kinds_in_no_order_lie_by_lifespan(numbers: str) -> None:
    trace = in_order(numbers)
    plan = memplan.solve(trace)
    assert not plan.elastic
    assert plan.lifespan_bytes == plan.arena_bytes > 0
    assert plan.warmup is not None
    assert len(plan.warmup.requests) == len(START)
    assert verify(plan) == []
    # Those that came before the ones that repeat are told, too.
    requests = [placed.requests for placed in (plan.hot, *plan.kinds)]
    told = {size for each in requests if each is not None for size in each.size}
    assert told >= {made.size for shape in SHAPES for made in shape}
    cpu = memplan.solve(replace(trace, info=replace(trace.info, device="cpu")))
    assert cpu.lifespan_bytes == 0


@pytest.mark.parametrize(
    "numbers", ["2000000000", "00000000000000020", "0101010101", "2100000000000"]
)
def test_steps_in_their_order_lie_at_offsets(numbers: str) -> None:
    """Repeated, but for the program's start, or one now and then."""
    plan = memplan.solve(in_order(numbers))
    assert plan.lifespan_bytes == 0


def test_a_start_that_comes_again_is_no_start() -> None:
    assert memplan.solve(in_order("200000000")).lifespan_bytes == 0
    assert memplan.solve(in_order("220000000")).lifespan_bytes > 0


def test_the_loader_gets_what_is_freed_soon() -> None:
    arrays = replay_arrays(elastic_plan(), warmup=False)
    assert arrays.brief is not None
    assert len(arrays.brief) == len(arrays.sizes)
    large = np.arange(len(arrays.sizes)) % len(step_of(1, 1)) < 2
    assert arrays.brief.tolist() == (~large).tolist()


def test_joined_plans_are_by_lifespan_if_the_first_is() -> None:
    elastic = replay_arrays(elastic_plan(), warmup=False)
    plain = replay_arrays(memplan.solve(on_cuda([step_of(64, 64)] * 4)), warmup=False)
    first = joined(elastic, plain)
    assert first.brief is not None
    assert len(first.brief) == len(first.sizes) == len(elastic.sizes) + len(plain.sizes)
    assert not first.brief[len(elastic.sizes) :].any()
    assert joined(plain, elastic).brief is None


# ---- how many bytes


def test_brief_is_told_by_ticks_around_the_clock_too() -> None:
    lower, upper = [0, 0, 90, 90, 0], [BRIEF, BRIEF + 1, BRIEF - 10, BRIEF - 9, 100]
    around = Problem.of(lower, upper, [64] * 5, length=100)
    assert around.brief.tolist() == [True, False, True, False, False]
    straight = Problem.of([0, 5], [BRIEF, 6 + BRIEF], [64, 64])
    assert straight.brief.tolist() == [True, False]


def placed_plainly(blocks: Problem, arena: int) -> int:
    """As `beside`: each free unit of the arena is looked at."""
    units, where = [False] * (arena // UNIT), dict[int, range | None]()
    now = most = 0
    size, brief = (blocks.taken // UNIT).tolist(), blocks.brief.tolist()
    for tick in range(int(blocks.upper.max(initial=0)) + 1):
        for i in np.flatnonzero(blocks.upper == tick).tolist():
            place = where.pop(i)
            now -= 0 if place else size[i]
            for unit in place or ():
                units[unit] = False
        for i in np.flatnonzero(blocks.lower == tick).tolist():
            holes, begin = [], 0
            for end, used in enumerate([*units, True]):
                if used:
                    holes += [(end - begin, begin)] if end - begin >= size[i] else []
                    begin = end + 1
            where[i] = place = None
            if holes:
                length, begin = min(holes)
                begin += length - size[i] if brief[i] else 0
                where[i] = place = range(begin, begin + size[i])
            now += 0 if place else size[i]
            most = max(most, now)
            for unit in place or ():
                units[unit] = True
    return most * UNIT


@st.composite
def recordings(draw: st.DrawFn) -> Problem:
    """Blocks on a clock of requests and frees, one at a tick."""
    count = draw(st.integers(1, 25))
    ticks = draw(st.permutations(range(2 * count)))
    ends = np.sort(np.array(ticks).reshape(count, 2), axis=1)
    sizes = draw(st.lists(st.integers(1, 700), min_size=count, max_size=count))
    return Problem.of(ends[:, 0], ends[:, 1], sizes, alignment=UNIT, rounding=UNIT)


@examples(50, recordings(), st.integers(1, 200))
def test_blocks_are_played_as_a_plain_placement_does(
    blocks: Problem, arena: int
) -> None:
    assert beside(blocks, arena * UNIT) == placed_plainly(blocks, arena * UNIT)


def test_there_is_room_for_steps_larger_than_the_few_recorded() -> None:
    blocks = Problem.of([0, 2], [1, 3], [32_000, 16_000], alignment=UNIT, rounding=UNIT)
    arenas = [arena_by_lifespan(blocks, steps, 0) for steps in (2, 8, 24, 32, 5000)]
    assert arenas == [40_000, 36_032, 33_344, 33_024, 33_024]


def test_where_only_offsets_hold_all_they_do() -> None:
    # The last one needs all of the arena but for a brief one's place, wherever it is.
    lower, upper = [0, 1, 2, 4], [3, 20, 21, 22]
    blocks = Problem.of(lower, upper, [640, 64, 64, 12_800], alignment=UNIT)
    arena = arena_by_lifespan(blocks, 100, 0)
    assert arena > 0
    assert beside(blocks, arena) == 0


def test_most_live_of_a_recording_without_blocks() -> None:
    assert arena_by_lifespan(Problem.of([], [], []), 3, 0) == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 5000), min_size=4, max_size=4), min_size=4, max_size=7
    ),
    st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
def test_recorded_blocks_are_those_that_steps_free_again(
    sizes: list[list[int]], after: list[int]
) -> None:
    steps = [tuple(map(Made, row, after)) for row in sizes]
    found = step_problem(on_cuda([START, *steps]))
    if found.varied is None:
        assert found.hot is None or not found.hot.elastic
        return
    begins = np.cumsum([len(START), *map(len, steps)])  # as requests are numbered

    def step_at(request: int) -> int:
        step = int(np.searchsorted(begins, request, side="right"))
        return min(step, len(steps))  # what is freed at the end is so in the last one

    wanted = [
        made.size
        for i, made in enumerate([made for step in steps for made in step], len(START))
        if made.after is not None and i + 1 + made.after <= begins[-1]
        if step_at(i + 1 + made.after) - step_at(i) <= 1
    ]
    wanted.sort()
    assert sorted(found.varied.blocks.size.tolist()) == wanted
    assert found.varied.steps == len(sizes)
    assert len(found.varied.start.requests) == len(START)
