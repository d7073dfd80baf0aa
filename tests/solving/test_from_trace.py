"""Plans of recorded programs: the warm-up around the hot steps."""

from __future__ import annotations

from memplan.core.verify import verify
from memplan.solving.from_trace import solve_trace
from tests.programs import Made, trace_of


def test_the_warm_up_is_placed_in_the_order_that_leaves_out_less() -> None:
    """By lifetime neither of its buffers finds a place, and by size both do."""
    before = (Made(128, 1), Made(64, 1))
    hot = (Made(128, 2), Made(192, 0))
    plan = solve_trace(trace_of([before, *[hot] * 4]), "bestfit")
    assert plan.warmup is not None
    assert plan.warmup.requests.planned.all()
    assert verify(plan) == []
