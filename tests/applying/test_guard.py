"""Plans that are not made anew are given up, too, where they do not fit."""

from __future__ import annotations

from memplan.applying.lanes import AGAIN, Guard
from memplan.applying.payoff import UNPROVEN, GivenUp
from memplan.core.plan import RunStats
from memplan.native import _alloc
from tests.applying.served import Served, table_of

SIZE = 1 << 12


def guarded() -> tuple[Served, Guard]:
    """A program under a plan of two requests a step, and what watches it."""
    replay = _alloc.make_replay(table_of([(SIZE, 0), (2 * SIZE, SIZE)]), 1 << 20)
    return Served(replay), Guard(replay, RunStats())


def test_departures_stay_outside_until_the_plan_fitted_a_step() -> None:
    program, guard = guarded()
    assert program.use(5 * SIZE) == [None]
    assert program.step(SIZE, 2 * SIZE) == [0, SIZE]
    program.replay.next_step()
    guard.step_ended()
    assert guard.given_up == []
    assert program.use(5 * SIZE) == [0]


def test_another_programs_plan_is_given_up_and_tried_again_ever_more_rarely() -> None:
    program, guard = guarded()
    times = []
    for count in range(3 * AGAIN + 12):
        program.step(7, 9, 11)
        guard.step_ended()
        if len(guard.given_up) > len(times):
            times.append(count)
            assert program.replay.aside
            assert program.use(SIZE) == [None]
    # What came before the first boundary is a step as well, without requests.
    assert guard.given_up[0] == GivenUp(UNPROVEN + 1, "different")
    assert len(times) == 3
    assert times[2] - times[1] > 1.5 * (times[1] - times[0])
