"""What is no plan to apply, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import memplan
from memplan.applying.suitability import check_plan
from memplan.errors import InputError
from tests.plans import changed
from tests.programs import Made, trace_of


def test_a_request_for_no_bytes_is_refused() -> None:
    """Even one that no buffer serves: the loader would wait for it in vain."""
    step = (Made(64, 0), Made(128, None))
    plan = memplan.solve(trace_of([(Made(64, 0),), *[step] * 5]))
    check_plan(plan, "p.json", "cpu")
    requests = plan.hot.requests
    assert requests is not None
    assert not requests.planned.all()
    size = np.where(requests.planned, requests.size, 0)
    empty = changed(plan, requests=replace(requests, size=size))
    with pytest.raises(InputError, match=r"p\.json has a request for 0 bytes"):
        check_plan(empty, "p.json", "cpu")
