"""What a run took: time and page faults of its steps, memory at its most."""

from __future__ import annotations

import itertools
import statistics

from memplan.core.plan import RunStats
from memplan.recording.resident import peak_resident_bytes
from memplan.trace.trace import Mark


def run_stats(marks: list[tuple[int, int, int]]) -> RunStats:
    """From step boundaries (ns, page faults so far, Mark): the steady half's medians.

    Only the strongest kind of mark counts, as everywhere.
    """
    strongest = max((kind for _, _, kind in marks), default=Mark.NONE)
    marks = [mark for mark in marks if mark[2] == strongest]
    steps = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in itertools.pairwise(marks)
    ]
    steady = steps[len(steps) // 2 :]
    if not steady:
        return RunStats(peak_rss_bytes=peak_resident_bytes())
    return RunStats(
        peak_rss_bytes=peak_resident_bytes(),
        page_faults_per_step=float(statistics.median(faults for _, faults in steady)),
        step_seconds=statistics.median(time for time, _ in steady) / 1e9,
    )
