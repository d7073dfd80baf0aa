"""Measured peaks do not depend on what else is freed meanwhile."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from memplan.graph.measure import activation_peak  # noqa: E402

pytestmark = pytest.mark.torch


def test_garbage_of_a_measured_run_does_not_lower_the_next_peak() -> None:
    """torch reports that it is freed, as it saw how it was allocated."""

    def circle() -> Any:
        found: list[Any] = [torch.ones(1 << 18)]
        found.append(found)

    def run() -> Any:
        lists = [[] for _ in range(250_000)]  # of which the collector hears
        return torch.ones(1 << 16), lists

    activation_peak(run)  # imports, of which it hears as well
    usual = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100_000)  # it does not begin before the run does
    try:
        assert activation_peak(circle) == 4 << 18
        assert activation_peak(run) == 4 << 16
        assert gc.isenabled()
    finally:
        gc.set_threshold(*usual)
