"""Where steps begin and blocks end, on the clock of requests and frees."""

from __future__ import annotations

from memplan.trace.lives import lives_of
from memplan.trace.trace import Action, Mark, Trace
from tests.programs import events_of

A, F, S = Action.ALLOC, Action.FREE_COMPLETED, Action.STEP


def test_what_dies_where_threads_race_outlasts_them_but_not_its_step() -> None:
    rows = [
        *[(A, 1, 10), (F, 1, 10)] * 9,  # long before the race
        (A, 1, 11),
        (A, 2, 12),
        (F, 2, 12),
        (F, 1, 11),
        (S, 1, 0),
        *[(A, 1, 10), (F, 1, 10)] * 9,
    ]
    steps = [row[0] == S for row in rows]
    events = events_of(
        "action thread address",
        rows,
        mark=[Mark.EXPLICIT if step else Mark.NONE for step in steps],
        size=[0 if step else 64 for step in steps],
    )
    line = lives_of(Trace(events))
    assert line.begins.tolist() == [0, 22, line.ticks]
    assert line.upper[:7].tolist() == line.freed[:7].tolist()
    # The end of the race is not known: it might be four ticks on, but the step ends.
    assert line.freed[9:11].tolist() == [22 - 1, 22 - 2]
    assert line.upper[9:11].tolist() == [22, 22]
    assert line.upper[13:].tolist() == line.freed[13:].tolist()
