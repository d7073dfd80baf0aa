"""A recording: from the first event in the journal to the trace on disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from memplan.core.plan import Program, RunStats
from memplan.errors import MemplanError, RecordError, UsageError
from memplan.files import open_journal, refuse_overwrite
from memplan.recording import target as target_module
from memplan.recording.boundary import Boundaries
from memplan.recording.ranks import rank, ranks
from memplan.recording.resident import peak_resident_bytes
from memplan.recording.shim import install
from memplan.text import printable
from memplan.trace.info import to_metadata
from memplan.trace.journal import recover_journal
from memplan.trace.stacks import StackTable
from memplan.trace.trace import Columns, Mark, Trace, TraceInfo
from memplan.trace.write import check_suffix, write_trace
from memplan.version import __version__

Stacks = Literal["none", "python"]


class Recording:
    """One recording of this process.

    path: the trace's file, once `finish` has run; trace: what was recorded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        steps: int | None = None,
        stacks: Stacks = "none",
        force: bool = False,
        program: Program | None = None,
        argv: tuple[str, ...] = (),
    ) -> None:
        """Prepare to record into `path` (.parquet, .json or .json.gz).

        steps: stop after this many steps, None for all; the program runs on.
        stacks: "python" notes who asked, at some cost for each allocation.
        Raises UsageError if the file exists and `force` is off.
        """
        if steps is not None and steps < 1:
            raise UsageError(f"steps={steps}: record at least one step")
        if stacks not in ("none", "python"):
            raise UsageError(f"stacks={stacks!r}: write none or python")
        self.path = Path(path)
        self.journal = Path(f"{self.path}.journal")
        self.trace: Trace | None = None
        self._steps, self._stacks, self._force = steps, stacks, force
        self._program = program or Program()
        self._argv = argv
        self._marks = dict.fromkeys(Mark, 0)
        self._boundaries = Boundaries(
            self._mark, (Mark.FORWARD, Mark.OPTIMIZER, Mark.EXPLICIT)
        )
        self._running = False
        self._process = os.getpid()

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfitError where recording is not possible."""
        from memplan.native import _alloc

        check_suffix(self.path)
        refuse_overwrite(self.path, self._force)
        install("recording")
        info = _metadata(self._info(complete=False))
        self._boundaries.start()
        try:
            descriptor = open_journal(self.journal, self._force)
            _alloc.start_recording(
                descriptor, info, self._stacks == "python", target_module.__file__
            )
        except BaseException:
            self._boundaries.stop()
            raise
        _alloc.say_on_termination(
            printable(
                f"memplan: terminated while recording: memplan recover {self.journal} "
                "makes the trace of what is there"
            )
            + "\n"
        )
        self._running = True
        self._process = os.getpid()

    def finish(self) -> None:
        """Stop, and turn the journal into the trace; harmless when not running.

        In a forked child nothing happens: the recording is its parent's. Raises
        RecordError if events or the trace could not be written; the journal is kept
        then, for `memplan recover`.
        """
        from memplan.native import _alloc

        if not self._running or os.getpid() != self._process:
            return
        self._running = False
        self._boundaries.stop()
        try:
            self._finish()
        finally:
            _alloc.say_nothing_on_termination()

    def _finish(self) -> None:
        from memplan.native import _alloc

        info = replace(self._info(complete=True), run=run_stats(_alloc.step_marks()))
        error, seen, written = _alloc.stop_recording(_metadata(info))
        if error:
            raise RecordError(
                f"recording stopped early: {os.strerror(error)} ({self.journal}); "
                f"{written} of {seen} events are in it: free some space, then "
                f"run memplan recover {self.journal}"
            )
        try:
            found = recover_journal(self.journal)
            info = replace(found.trace.info, dropped_events=seen - written)
            if seen > written or found.reason:
                info = replace(info, complete=False)
            self.trace = replace(found.trace, info=info)
            write_trace(self.trace, self.path)
        except MemplanError as failure:
            raise RecordError(
                f"{failure}; nothing is lost: memplan recover {self.journal} "
                "makes the trace again"
            ) from failure
        if not found.reason:
            self.journal.unlink(missing_ok=True)

    def _mark(self, mark: Mark) -> None:
        from memplan.native import _alloc

        self._marks[mark] += 1
        _alloc.mark_step(mark)
        # An optimizer's mark ends a step; the others begin one.
        ended = self._marks[mark] - (mark is not Mark.OPTIMIZER)
        strongest = max(kind for kind in Mark if self._marks[kind])
        if self._steps is not None and mark is strongest and ended >= self._steps:
            with _reported():
                self.finish()

    def _info(self, complete: bool) -> TraceInfo:
        torch = sys.modules["torch"]
        strongest = max((kind for kind in Mark if self._marks[kind]), default=Mark.NONE)
        return TraceInfo(
            program=replace(
                self._program,
                torch=str(torch.__version__),
                threads=torch.get_num_threads(),
                marks=strongest.name.lower(),
            ),
            argv=self._argv,
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            stacks=self._stacks,
            complete=complete,
            producer=f"memplan {__version__}",
            rank=rank() or 0,
            ranks=ranks(),
        )


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    stacks: Stacks = "none",
    force: bool = False,
) -> Iterator[Recording]:
    """Record what the block allocates on the CPU, into `path`.

    `with memplan.record("trace.parquet") as recording: train()`; afterwards
    `recording.trace` is the Trace. The parameters are those of Recording.
    """
    recording = Recording(path, steps=steps, stacks=stacks, force=force)
    recording.start()
    try:
        yield recording
    finally:
        recording.finish()


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


def _metadata(info: TraceInfo) -> str:
    return json.dumps(to_metadata(Trace(Columns.of(), StackTable(), info)))


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """In the middle of somebody's program a failure of ours is only told."""
    try:
        yield
    except Exception as error:
        print(printable(f"memplan: {error}"), file=sys.stderr)
