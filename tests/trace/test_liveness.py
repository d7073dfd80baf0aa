"""What is planned of a recorded step, and what is left to the default allocator."""

from __future__ import annotations

from memplan.trace.liveness import step_problem
from tests.programs import Made, trace_of


def test_what_is_alive_two_steps_into_the_hot_ones_is_persistent() -> None:
    hot = (Made(64, 1), Made(128, 0))
    # Freed in the second hot step, in the third, and never.
    before = (Made(500, 7), Made(700, 8), Made(30, None))
    found = step_problem(trace_of([before, *[hot] * 6]))
    assert found.hot is not None
    assert found.hot.begin == 2
    assert found.persistent_bytes == 730
