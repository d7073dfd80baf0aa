"""What torch would reserve in the recorded run under a plan, by a model of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from memplan import write_trace
from memplan.core.plan import DeviceRun, Program
from memplan.core.planfile import read_plan
from memplan.solving.solve import solve
from memplan.trace.caching_allocator import CachingAllocator
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo
from tests.conftest import Run
from tests.plans import changed

MIB = 1 << 20
Step = list[tuple[int, bool]]  # requests, bytes, freed before the next one or kept
KEPT = True


def recorded(
    *steps: Step, weight: int = 30 * MIB, lost: int = 0, emptied: bool = False
) -> Trace:
    """The events of a program under torch's allocator: a weight, then marked steps.

    lost: bytes reserved that no rule explains. emptied: the cache is, after each step.
    """
    allocator = CachingAllocator()
    rows: list[tuple[Action, Mark, int, int]] = []

    def segments() -> None:
        for made, address, length in allocator.take_changes():
            action = Action.SEGMENT_ALLOC if made else Action.SEGMENT_FREE
            rows.append((action, Mark.NONE, address, length))

    def request(size: int) -> int:
        at, rounded = allocator.allocate(size)
        segments()
        rows.append((Action.ALLOC, Mark.NONE, at, rounded))
        return at

    if lost:
        rows.append((Action.SEGMENT_ALLOC, Mark.NONE, 1 << 50, lost))
    request(weight)
    for step in steps:
        rows.append((Action.STEP, Mark.EXPLICIT, 0, 0))
        for size, kept in step:
            at = request(size)
            if not kept:
                rows.append((Action.FREE_COMPLETED, Mark.NONE, at, allocator.free(at)))
        if emptied:
            allocator.empty_cache()
            segments()
    action, mark, address, size = zip(*rows, strict=True)
    events = Columns.of(
        time_ns=range(len(rows)),
        action=action,
        mark=mark,
        address=address,
        size=size,
        requested_size=size,
    )
    program = Program(marks="explicit")
    info = TraceInfo(program=program, device="cuda", alignment=512)
    return Trace(events, info=info)


def predicted(trace: Trace) -> DeviceRun:
    return solve(trace).provenance.recorded_device


LOOP: Step = [(33 * MIB, False), (48 * MIB, False)]


def test_blocks_in_the_arena_take_no_segment() -> None:
    run = predicted(recorded(*[LOOP] * 5))
    assert run.reserved_bytes == (30 + 34 + 48) * MIB
    assert run.planned_bytes == (30 + 48) * MIB


def test_what_the_arena_does_not_serve_takes_whole_segments() -> None:
    weight = recorded(*[LOOP] * 5, weight=4 * MIB)
    assert predicted(weight).planned_bytes == (20 + 48) * MIB


def test_what_comes_after_the_planned_steps_counts() -> None:
    late = [*LOOP, (100 * MIB, KEPT)]
    run = predicted(recorded(*[LOOP] * 5, late, late))
    assert run.planned_bytes >= (30 + 48 + 200) * MIB


def test_a_small_arena_lies_in_a_segment_that_is_there() -> None:
    small: Step = [(2 * MIB, False), (3 * MIB, False)]
    run = predicted(recorded(*[small] * 5, weight=4 * MIB))
    assert (run.reserved_bytes, run.planned_bytes) == (20 * MIB, 20 * MIB)


def test_a_cache_that_the_program_empties_is_no_other_rule() -> None:
    # One after the other, each step's blocks are larger than what was kept.
    steps: list[Step] = [[(48 * MIB, False)], [(50 * MIB, False)]] * 3
    run = predicted(recorded(*steps, emptied=True))
    assert run.reserved_bytes == (30 + 50) * MIB
    assert run.planned_bytes == (30 + 50) * MIB


def test_nothing_is_predicted_of_an_allocator_by_other_rules() -> None:
    plan = solve(recorded(*[LOOP] * 5, lost=20 * MIB))
    assert plan.provenance.recorded_device.planned_bytes == 0
    assert plan.pays


def test_nothing_is_predicted_of_a_recording_that_is_not_whole() -> None:
    trace = recorded(*[LOOP] * 5)
    assert predicted(replace(trace, info=replace(trace.info, complete=False))) == (
        replace(predicted(trace), planned_bytes=0, expandable_bytes=0)
    )


def test_blocks_of_one_range_share_its_memory_with_expandable_segments() -> None:
    run = predicted(recorded(*[LOOP] * 5))
    assert run.expandable_bytes == 80 * MIB  # 30 + 48 MiB, of which the 33 are a part
    small: Step = [(1000, False), (4 * MIB, False)]
    run = predicted(recorded(*[small] * 5, weight=16 * MIB))
    assert run.expandable_bytes == (2 + 20) * MIB


def test_what_takes_less_without_a_plan_is_said(memplan: Run, tmp_path: Path) -> None:
    write_trace(recorded(*[LOOP] * 5, weight=33 * MIB), tmp_path / "t.parquet")
    shown = " ".join(memplan("solve", "t.parquet", "-o", "p.json").stdout.split())
    told = "100.0 MiB with expandable_segments:True and no plan next"
    assert told in shown
    # Blocks of one step that are larger than those of the last.
    grows: list[Step] = [[(size * MIB, False)] for size in (12, 24, 36, 48, 60)]
    write_trace(recorded(*grows, weight=1000), tmp_path / "w.parquet")
    shown = " ".join(memplan("solve", "w.parquet", "-o", "q.json").stdout.split())
    told = "62.0 MiB with expandable_segments:True and no plan which is less: set it"
    assert told in shown


def paying(natively: int, planned: int, *, elastic: bool = False) -> bool:
    run = DeviceRun(reserved_bytes=natively, planned_bytes=planned)
    plan = solve(recorded(*[LOOP] * 4))
    return changed(plan, recorded_device=run, elastic=elastic).pays


def test_a_plan_of_fixed_sizes_pays_unless_more_is_reserved() -> None:
    assert paying(100, 100)
    assert not paying(100, 101)
    assert paying(0, 101)  # nothing is known


def test_of_varying_sizes_a_little_more_is_no_sign() -> None:
    assert paying(100, 102, elastic=True)
    assert not paying(100, 103, elastic=True)


@given(
    st.lists(
        st.sampled_from([512, 4096, MIB, 3 * MIB, 12 * MIB, 33 * MIB]),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([4096, 4 * MIB, 64 * MIB]),
)
def test_a_loop_of_fixed_sizes_takes_the_arena_or_what_it_would_without(
    sizes: list[int], weight: int
) -> None:
    trace = recorded(*[[(size, False) for size in sizes]] * 5, weight=weight)
    plan = solve(trace)
    run = plan.provenance.recorded_device
    arena = CachingAllocator()
    arena.allocate(weight)
    arena.allocate(plan.arena_bytes)
    assert min(arena.reserved, run.reserved_bytes) <= run.planned_bytes
    assert run.planned_bytes <= run.reserved_bytes


def test_solve_says_that_a_plan_does_not_pay(memplan: Run, tmp_path: Path) -> None:
    # The last block has no room in the arena, where one of 48 MiB lies idle natively.
    trace = recorded(*[LOOP] * 5, [(33 * MIB, KEPT), (40 * MIB, KEPT)])
    write_trace(trace, tmp_path / "t.parquet")
    done = memplan("solve", "t.parquet", "-o", "p.json")
    shown = " ".join((done.stdout + done.stderr).split())
    assert "reserved 112.0 MiB recorded, 118.0 MiB under the plan" in shown
    assert "which is more: memplan apply runs the program without" in shown
    assert "next: memplan plot" in shown
    done = memplan("solve", "t.parquet", "-o", "p.json", "--force", "--json")
    sizes = {"recorded_bytes": 112 * MIB, "planned_bytes": 118 * MIB}
    sizes["expandable_bytes"] = 120 * MIB  # 30 + 33 + 40 MiB, and units of 20 MiB
    assert json.loads(done.stdout)["reserved"] == sizes | {"pays": False}
    again = read_plan(tmp_path / "p.json")
    assert again.provenance.recorded_device.planned_bytes == 118 * MIB
    assert not again.pays
