"""The pytest fixture `memplan_peak`: what a test's code asks for, held to limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memplan.reporting.stats import Stats


class PeakRecorder:
    """Records blocks of code; each call is a context that ends with a check.

    stats: of the last block that ended, None before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.stats: Stats | None = None

    @contextlib.contextmanager
    def __call__(
        self,
        limit: int | str | None = None,
        *,
        no_leak: bool = False,
        no_cycles: bool = False,
    ) -> Iterator[PeakRecorder]:
        """Record the block's CPU tensors; the test fails if they exceed `limit`.

        limit: bytes, or as in "64MiB"; None for no limit. no_leak: and if memory grows
        over steps. no_cycles: and if Python's collector frees more than 1 % of it.
        """
        from memplan.recording.record import record
        from memplan.reporting.check import Limits, check
        from memplan.reporting.stats import summarize
        from memplan.trace.read import read_trace
        from memplan.units import parse_bytes

        most = parse_bytes(limit) if isinstance(limit, str) else limit
        self._count += 1
        path = self._folder / f"memplan{self._count}.parquet"
        with record(path, device="cpu", steps="all"):
            yield self
        trace = read_trace(path)
        self.stats = summarize(trace)
        if limit is None and not (no_leak or no_cycles):
            return
        limits = Limits(most=most, no_leak=no_leak, no_cycles=no_cycles)
        verdict = check(trace, limits)
        if not verdict.passed:
            pytest.fail(verdict.message, pytrace=False)

    @property
    def bytes(self) -> int:
        """The most bytes that were live at once in the last block; 0 before."""
        return 0 if self.stats is None else self.stats.peak.bytes


@pytest.fixture
def memplan_peak(tmp_path: Path) -> PeakRecorder:
    """`with memplan_peak("64MiB"): train()` fails the test if the block needs more.

    `memplan_peak.bytes` is what it needed, `memplan_peak.stats` all that is known.
    """
    return PeakRecorder(tmp_path)
