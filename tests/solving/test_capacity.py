"""What a capacity is compared with, and what a plan will bring."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memplan as package
from memplan.core.plan import Plan, RunStats
from memplan.core.problem import Problem
from memplan.errors import InfeasibleError, NoPlanError, UsageError
from memplan.reporting.check import Limits, check
from memplan.solving.capacity import Room, room_for, solve_within
from memplan.solving.from_trace import solve_trace
from memplan.solving.options import Options
from memplan.solving.outlook import MAPPED, default_heaps, outlook, unplanned_bytes
from memplan.solving.solve import solve
from memplan.trace.trace import Action, Trace
from tests.conftest import Command
from tests.programs import Made, Step, programs, trace_of

KEPT = Made(4096, None)
STEP: Step = (Made(1024, 1), Made(2048, 0))


def training(steps: int = 6) -> Trace:
    """4096 bytes that stay, and at most 3072 more in each step."""
    return trace_of([(KEPT, *STEP), *[STEP] * steps])


def fits(trace: Trace, room: Room) -> Plan:
    return solve_within(
        room, Options(), lambda options: solve(trace, "bestfit", options=options)
    )


def test_what_stays_counts() -> None:
    trace = training()
    room = room_for(trace, 7168, None)
    assert (room.of, room.outliving, room.outside) == ("live", 4096, 4096)
    plan = fits(trace, room)
    assert room.needed(plan) == 7168
    with pytest.raises(InfeasibleError, match="whatever the plan"):
        fits(trace, room_for(trace, 7167, None))
    assert fits(trace, room_for(trace, 3072, "arena")).arena_bytes == 3072


def test_the_process_counts() -> None:
    trace = training()
    measured = replace(trace.info, run=RunStats(peak_rss_bytes=1 << 20))
    trace = replace(trace, info=measured)
    room = room_for(trace, 1 << 20, "process")
    assert room.beyond > (1 << 20) - 16384
    assert room.needed(fits(trace, room)) <= 1 << 20
    with pytest.raises(InfeasibleError):
        fits(trace, room_for(trace, 500_000, "process"))
    with pytest.raises(UsageError, match="resident memory was measured"):
        room_for(training(), 1 << 20, "process")


def test_a_request_that_failed_would_have_had_to_fit() -> None:
    trace = training()
    events = trace.events
    action = events.action.copy()
    action[-1] = Action.OOM
    size = events.requested_size.copy()
    size[-1] = 1 << 30
    failed = replace(trace, events=replace(events, action=action, requested_size=size))
    with pytest.raises(InfeasibleError):
        fits(failed, room_for(failed, 1 << 30, None))
    with pytest.raises(NoPlanError, match="failed in this recording") as caught:
        fits(failed, room_for(failed, 1 << 40, None))
    assert not isinstance(caught.value, InfeasibleError)


def test_what_other_streams_hold_counts() -> None:
    one = training()
    events = one.events
    other = np.where(events.requested_size == 2048, 7, 0)
    trace = replace(
        one,
        events=replace(events, stream=other.astype(np.int64)),
        info=replace(one.info, device="cuda"),
    )
    room = room_for(trace, 7168, None)
    assert (room.outliving, room.other_streams) == (4096, 2048)
    assert room.needed(fits(trace, room)) == 7168
    # As a check of what is planned has it.
    assert check(trace, Limits(most=7168, of="planned")).value == 7168


def test_two_parts_that_need_not_be_there_at_once_prove_nothing() -> None:
    trace = training()
    apart = Room(7000, "live", outliving=2048, other_streams=2048)
    assert not apart.at_once

    def proved(options: Options) -> Plan:
        return solve(trace, "exact", options=options)

    for capacity, message in ((7000, "every plan needs at least"), (4000, "at once")):
        with pytest.raises(NoPlanError, match=message) as caught:
            solve_within(replace(apart, capacity=capacity), Options(), proved)
        assert not isinstance(caught.value, InfeasibleError)
        assert str(caught.value).startswith("unknown: ")
        for one in ("outliving", "other_streams"):
            alone = replace(apart, capacity=capacity - 2048, **{one: 0})
            if capacity == 7000:
                with pytest.raises(InfeasibleError):
                    solve_within(alone, Options(), proved)


def test_it_is_unknown_where_the_method_finds_no_better() -> None:
    trace = training()
    room = Room(4096, "live", outliving=1)
    plan = solve(trace, "bestfit")

    def larger(options: Options) -> Plan:
        return replace(plan, lanes=4)

    with pytest.raises(NoPlanError, match="for all steps and threads") as caught:
        solve_within(room, Options(), larger)
    assert not isinstance(caught.value, InfeasibleError)
    assert "1 B that outlive their steps" in str(caught.value)


@given(programs(), st.integers(0, 40_000))
def test_what_fits_holds_all_that_was_live(program: list[Step], capacity: int) -> None:
    trace = trace_of(program)
    room = room_for(trace, capacity, None)
    try:
        plan = fits(trace, room)
    except NoPlanError:
        with pytest.raises(NoPlanError):
            fits(trace, replace(room, capacity=capacity // 2))
        return
    assert room.live <= room.needed(plan) <= capacity


def test_the_command_names_what_it_counts(command: Command, tmp_path: Path) -> None:
    package.write_trace(training(), tmp_path / "t.parquet")
    done = command("solve", "t.parquet", "--capacity", "7KiB")
    assert done.code == 0, done.err
    assert "7.0 KiB of 7.0 KiB: it fits" in done.out
    assert "3.0 KiB planned arena, 4.0 KiB outlives its steps" in done.out
    assert "the rest of the process: libraries" in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    done = command("solve", "t.parquet", "--capacity", "6KiB", "--json")
    found = json.loads(done.out)
    assert done.code == 4
    assert (found["capacity_of"], found["outside_bytes"]) == ("live", 4096)
    done = command("solve", "t.parquet", "--capacity", "6KiB", "--capacity-of", "arena")
    assert done.code == 0


def test_where_no_step_repeats_the_command_says_so_in_json(
    command: Command, tmp_path: Path
) -> None:
    odd = trace_of([(Made(64, 0),), (Made(128, 0), Made(64, 0)), (Made(999, 0),)])
    package.write_trace(odd, tmp_path / "t.parquet")
    done = command("solve", "t.parquet", "--capacity", "1MiB", "--json")
    found = json.loads(done.out)
    assert done.code == 4
    assert (found["status"], found["plan"]) == ("unknown", None)
    assert (found["capacity"], found["capacity_of"]) == (1 << 20, "live")
    assert "outside_bytes" not in found  # of no step, it is not known


def test_what_is_beside_the_tensors_counts_against_the_recorded_peak() -> None:
    room = Room(100, "process", beyond=30, live=80)
    with pytest.raises(InfeasibleError, match="at once, whatever the plan"):
        solve_within(room, Options(), lambda options: solve(training(), "bestfit"))
    assert room.needed(solve(trace_of([(Made(64, 0),)]), "bestfit", step="all")) == 110


# ---- what a plan will bring, said before it is applied


HOT = (Made(1 << 20, 0), Made(1 << 21, 0))


def measured(trace: Trace, peak: int, added: int) -> Trace:
    run = RunStats(peak_rss_bytes=peak)
    return replace(trace, info=replace(trace.info, run=run, added_bytes=added))


def test_what_stays_is_out_of_reach() -> None:
    trace = trace_of([(Made(1 << 24, None), *HOT), *[HOT] * 8])
    assert unplanned_bytes(trace) == 1 << 24
    trace = measured(trace, 1 << 30, 1 << 29)
    plan = solve_trace(trace)
    found = outlook(trace, plan)
    assert found is not None
    assert found.persistent == 1 << 24
    assert found.peak_planned - found.out_of_reach == plan.arena_bytes
    assert found.peak_planned_least <= found.peak_planned <= found.peak_now
    assert found.most_live <= default_heaps(trace)[0]


def test_what_is_beside_tensors_is_what_was_measured() -> None:
    trace = trace_of([(Made(1 << 24, None), *HOT), *[HOT] * 8])
    live, most = 1 << 24, (1 << 24) + (1 << 21)
    used = (1 << 28) + live  # 256 MiB beside what is live at the end
    trace = measured(trace, used + (1 << 23), 1 << 26)
    trace = replace(trace, info=replace(trace.info, used_bytes=used))
    heaps, most_live = default_heaps(trace)
    assert most_live == most
    plan = solve_trace(trace)
    found = outlook(trace, plan)
    assert found is not None
    planned = (1 << 28) + live + plan.arena_bytes
    assert found.peak_planned == found.peak_planned_least == planned
    assert found.out_of_reach == (1 << 28) + live
    assert (found.peak_now_least, found.peak_now) == (
        (1 << 28) + heaps,
        used + (1 << 23),
    )
    assert room_for(trace, 1 << 30, "process").beyond == 1 << 28


def test_a_peak_that_no_heap_explains_may_come_again() -> None:
    trace = trace_of([HOT] * 8)
    used, peak = 1 << 28, 1 << 30
    trace = measured(trace, peak, 0)
    trace = replace(trace, info=replace(trace.info, used_bytes=used))
    plan = solve_trace(trace)
    found = outlook(trace, plan)
    assert found is not None
    assert used < peak - 4 * found.most_live == found.peak_planned_least
    assert found.peak_planned_least == found.peak_now_least < found.peak_planned
    assert peak - (1 << 20) < found.peak_planned <= peak
    assert found.saved == 0.0 < found.saved_most


def test_the_last_steps_gradients_are_planned() -> None:
    step = (Made(1 << 20, 2), Made(1 << 21, 0))  # freed when the next one begins
    trace = trace_of([(Made(1 << 24, None), *step), *[step] * 8])
    assert unplanned_bytes(trace) == 1 << 24


def test_of_a_whole_recording_only_what_is_never_freed_is_not_planned() -> None:
    trace = trace_of([(Made(1 << 24, 12), Made(5000, None), *HOT), *[HOT] * 8])
    found = outlook(trace, solve_trace(trace, step="all"))
    assert found is not None
    assert found.persistent == 5000


@given(st.lists(st.integers(1, 2 * MAPPED), min_size=1, max_size=30))
def test_heaps_hold_what_is_alive(sizes: list[int]) -> None:
    trace = trace_of([tuple(Made(size, 0) for size in sizes)] * 3)
    heaps, most_live = default_heaps(trace)
    live = max(sizes) if len(sizes) else 0
    assert heaps >= most_live >= live


def test_a_plan_of_a_program_that_is_mostly_something_else_does_not_pay() -> None:
    trace = measured(trace_of([HOT] * 8), 1 << 34, 1 << 22)
    found = outlook(trace, solve_trace(trace))
    assert found is not None
    assert not found.pays
    assert 0 <= found.saved <= found.saved_most < 0.02


def test_where_nothing_was_measured_nothing_is_said_of_it() -> None:
    trace = trace_of([HOT] * 8)
    found = outlook(trace, solve_trace(trace))
    assert found is not None
    assert (found.peak_now, found.saved, found.pays) == (0, 0.0, True)


@pytest.mark.parametrize("device", ["cuda"])
def test_only_the_cpus_heaps_are_known(device: str) -> None:
    trace = trace_of([HOT] * 8)
    plan = solve_trace(trace)
    assert (
        outlook(replace(trace, info=replace(trace.info, device=device)), plan) is None
    )
    bare = solve(Problem.of([0], [1], [1]))
    assert outlook(trace, bare) is None
