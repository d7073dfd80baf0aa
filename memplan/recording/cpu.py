"""Recording the CPU's memory: from the first event in the journal to the trace."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from memplan.core.plan import Program, RunStats
from memplan.errors import MemplanError, RecordError
from memplan.files import open_journal
from memplan.native import _alloc
from memplan.recording.fake_noticed import FakeNoticed
from memplan.recording.options import RecordOptions
from memplan.recording.resident import anonymous_bytes, file_bytes
from memplan.recording.settling import MOST_EVENTS
from memplan.recording.shim import install
from memplan.recording.sites import ALL, SITE, Sites
from memplan.recording.stats import run_stats
from memplan.recording.step_clock import StepClock
from memplan.text import printable
from memplan.trace.info import encode_metadata
from memplan.trace.recovery import Written, recover_journal
from memplan.trace.trace import Columns, Mark, Trace, TraceInfo

NOTED_SHARE = 0.15  # of a step's time; what sites take beyond it is told
NOTED_SECONDS = 0.1  # of steps; in less nobody waits, and little was timed


class CpuEvents:
    """What this process asks torch's CPU allocator for, in a journal beside `path`."""

    def __init__(self, path: Path, options: RecordOptions) -> None:
        self._path = path
        self._journal = Path(f"{path}.journal")
        self._options = options
        self._before = 0  # bytes, when it began
        self._recover = f"memplan recover {shlex.quote(str(self._journal))}"
        self._remedy = f"{self._recover} makes the trace of what is there"
        self._clock = StepClock()
        depth = {"none": None, "site": SITE, "python": ALL}[options.stacks]
        self._sites = None if depth is None else Sites(depth)
        self._fakes = FakeNoticed()
        # At the first boundary: what sites count, and nanoseconds, wall's and CPU's.
        self._first: tuple[tuple[int, int, int], int, int] | None = None
        self._sites_share = 0.0

    def prepare(self) -> None:
        """To be called before anything else hooks optimizers; `close` undoes it."""
        if self._sites is not None:
            self._sites.prepare()

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfitError where recording is not possible."""
        install("recording")
        self._before = anonymous_bytes()
        info = self._metadata(Mark.NONE, complete=False)
        descriptor = open_journal(self._journal, self._options.force)
        limit = MOST_EVENTS if self._options.steps == "auto" else 0
        _alloc.note_stacks(0)
        self._fakes.start()
        if self._sites is not None:
            self._sites.start()
        _alloc.start_recording(descriptor, info, limit)
        _alloc.say_on_termination(
            printable(f"memplan: terminated while recording: {self._remedy}") + "\n"
        )

    def mark(self, mark: Mark) -> int:
        """A step boundary is here; a digest of what this thread asked for before it."""
        _alloc.mark_step(mark)
        self._clock.note(mark)
        if self._first is None and self._sites is not None:
            time_ns, _, cpu_ns = _alloc.step_usage()
            self._first = self._sites.counts(), time_ns, cpu_ns
        return _alloc.take_digest()

    @property
    def events(self) -> int:
        """Recorded so far."""
        return _alloc.recorded_events()

    def finish(self, mark: Mark) -> Written:
        """Stop, and turn the journal into the trace, whose steps `mark` cuts.

        Raises RecordError if events or the trace could not be written; the journal is
        kept then, and on Ctrl-C, for `memplan recover`.
        """
        try:
            self._fakes.stop()
            self._sites_share = self._share()
            if self._sites is not None:
                self._sites.stop()
            info = self._metadata(mark, complete=True)
            error, seen, written = _alloc.stop_recording(info)
            if error:
                raise RecordError(
                    f"recording stopped early: {os.strerror(error)} ({self._journal}); "
                    f"{written} of {seen} events are in it: mend that, then "
                    f"run {self._recover}"
                )
            return self._convert(seen - written)
        finally:
            _alloc.say_nothing_on_termination()

    def notes(self) -> list[str]:
        """What of the program is not in the trace."""
        notes = self._fakes.notes()
        if self._sites_share > NOTED_SHARE:
            notes.append(
                f"noting who asks took about {self._sites_share:.0%} of a step's time "
                "beside it, as its steps are short; --stacks none leaves it out"
            )
        return notes

    def _share(self) -> float:
        """What sites took since the first boundary, to all else that was done since."""
        if self._first is None or self._sites is None:
            return 0.0
        counts, first_ns, first_cpu_ns = self._first
        sites = self._sites.took_ns(counts)
        time_ns, _, cpu_ns = _alloc.step_usage()
        # Others on the machine stretch the one, threads of the program's the other.
        rest = min(time_ns - first_ns, cpu_ns - first_cpu_ns) - sites
        return sites / rest if rest > NOTED_SECONDS * 1e9 else 0.0

    def close(self) -> None:
        """The program has ended: nothing of its is running any more."""
        self._fakes.stop()
        if self._sites is not None:
            self._sites.close()

    def _convert(self, dropped: int) -> Written:
        try:
            found = recover_journal(self._journal, self._path, dropped)
        except MemplanError as failure:
            raise RecordError(
                f"{failure}; nothing is lost: {self._recover} makes the trace again"
            ) from failure
        except KeyboardInterrupt:
            line = printable(f"memplan: interrupted while writing: {self._remedy}")
            print(line, file=sys.stderr)
            raise
        if not found.reason:
            self._journal.unlink(missing_ok=True)
        return found

    def _metadata(self, mark: Mark, complete: bool) -> str:
        """The metadata as JSON. Raises FormatError if no reader would take it."""
        clock = self._clock
        run = run_stats(clock.boundaries(), clock.steps) if complete else RunStats()
        info = TraceInfo(
            program=Program(marks=mark.name.lower()),
            run=run,
            stacks=self._options.stacks,
            complete=complete,
        )
        if complete and self._before:
            added = info.run.peak_rss_bytes - file_bytes() - self._before
            info = replace(info, added_bytes=max(added, 0))
        info = self._options.about(sys.modules["torch"], info)
        return encode_metadata(self._path, Trace(Columns.of(), info=info)).decode()
