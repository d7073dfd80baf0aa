"""What a run took: time and page faults of its steps, memory at its most."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memplan.core.plan import RunStats
from memplan.recording.resident import peak_resident_bytes
from memplan.recording.step_clock import Boundary
from memplan.trace.trace import Mark


@dataclass(frozen=True)
class Spread:
    """Of a figure over steps: its mean, and what a quarter, a half, three quarters and
    all of the steps did not exceed."""

    mean: float = 0.0
    quarter: float = 0.0
    median: float = 0.0
    three_quarters: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more; all 0 for none."""
        if not values:
            return cls()
        ranks = np.quantile(values, [0.25, 0.5, 0.75, 1.0]).tolist()
        return cls(float(np.mean(values)), *ranks)


@dataclass(frozen=True)
class StepSpreads:
    """Over the later half of the steps: wall seconds, seconds of CPU time of all
    threads, and page faults; counted: steps in that half."""

    counted: int
    seconds: Spread
    cpu_seconds: Spread
    page_faults: Spread


def step_spreads(boundaries: list[Boundary]) -> StepSpreads:
    """Of the steps between boundaries of the strongest kind of mark, as everywhere."""
    strongest = max((kind for _, _, kind, _ in boundaries), default=Mark.NONE)
    chosen = [each for each in boundaries if each[2] == strongest]
    pairs = list(itertools.pairwise(chosen))
    steady = pairs[len(pairs) // 2 :]
    return StepSpreads(
        len(steady),
        Spread.of([(after[0] - before[0]) / 1e9 for before, after in steady]),
        Spread.of([(after[3] - before[3]) / 1e9 for before, after in steady]),
        Spread.of([float(after[1] - before[1]) for before, after in steady]),
    )


def run_stats(boundaries: list[Boundary], steps: int | None = None) -> RunStats:
    """How this process's run went, up to now.

    The median of the wall time, which others on the machine stretch now and then; of
    page faults and CPU time the mean, so that what falls on a few steps is not lost.
    steps: boundaries in all, where some were not kept.
    """
    spreads = step_spreads(boundaries)
    return RunStats(
        peak_rss_bytes=peak_resident_bytes(),
        page_faults_per_step=spreads.page_faults.mean,
        step_seconds=spreads.seconds.median,
        cpu_seconds=spreads.cpu_seconds.mean,
        steps=len(boundaries) if steps is None else steps,
        load=machine_load(),
    )


def machine_load() -> float:
    """How many programs ran or waited to run in the last minute; 0 if unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
