"""Recording events: from the journal to the traces."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from memplan.core.plan import Program, RunStats
from memplan.errors import MemplanError, RecordError, as_options
from memplan.files import open_journal, refuse_overwrite
from memplan.native import _alloc
from memplan.recording.activations import Activations, storage_address
from memplan.recording.boundary import MOST_EVENTS
from memplan.recording.cuda_observer import CudaObserver
from memplan.recording.holders import HolderWatch
from memplan.recording.options import RecordOptions
from memplan.recording.shim import install, watch_fake_modes
from memplan.recording.sites import ALL, SITE, Sites
from memplan.recording.usage import (
    StepClock,
    anonymous_bytes,
    file_bytes,
    run_stats,
    used_bytes,
)
from memplan.text import printable
from memplan.trace.info import encode_metadata
from memplan.trace.journal import Journal
from memplan.trace.recovery import Recovered, Written, paths_of, recover_journal
from memplan.trace.trace import Columns, Mark, Trace, TraceInfo

NOTED_SHARE = 0.15  # of a step's time; a note reports a larger cost of call sites
NOTED_SECONDS = 0.1  # of steps; shorter runs are not worth a note


class Events:
    """This process's requests to torch's allocators, in a journal beside `path`.

    paths: after `finish`, each GPU's trace by its index; {} for a CPU trace.
    """

    def __init__(
        self,
        path: Path,
        options: RecordOptions,
        observer: CudaObserver | None = None,
    ) -> None:
        """Record the CPU's allocator, unless the options name CUDA alone, and the
        events that `observer` reports."""
        self.paths: dict[int, Path] = {}
        self._path = path
        self._journal = Path(f"{path}.journal")
        self._options = options
        self._cpu = options.device != "cuda"
        self._observer = observer
        self._before = 0  # bytes, when it began
        self._recover = f"memplan recover {shlex.quote(str(self._journal))}"
        self._remedy = f"{self._recover} makes the trace of what is there"
        self._clock = StepClock()
        depth = {"none": None, "site": SITE, "python": ALL}[options.stacks]
        self._sites = None if depth is None else Sites(depth, self._cpu, observer)
        self._activations = (
            Activations(storage_address, fake=False) if options.activations else None
        )
        self._watch = HolderWatch(storage_address, _alloc.recorded_events)
        self._fake_mode = ""  # where the program made one
        self._patches = contextlib.ExitStack()
        # At the first boundary: what sites count, and nanoseconds, wall's and CPU's.
        self._first: tuple[tuple[int, int, int], int, int] | None = None
        self._sites_share = 0.0

    def prepare(self) -> None:
        """Call this before anything else hooks optimizers; `close` undoes it."""
        if self._sites is not None:
            self._sites.prepare()

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfitError where recording is not possible."""
        if self._cpu:
            install("recording")
        self._before = anonymous_bytes()
        info = self._metadata(Mark.NONE, complete=False)
        descriptor = open_journal(self._journal, self._options.force)
        limit = MOST_EVENTS if self._options.steps == "auto" else 0
        _alloc.note_stacks(0)
        self._patches.enter_context(watch_fake_modes(self._note_fake_mode))
        if self._sites is not None:
            self._sites.start()
        if self._options.names_holders:
            self._watch.start()
        _alloc.start_recording(descriptor, info, limit, self._cpu)
        if self._activations is not None:
            self._activations.start()
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

        Where a GPU was used that is its trace, with one more for each other one. Raises
        RecordError if events or a trace could not be written, or there are none of CUDA
        memory where only those were asked for; the journal is kept where anything is in
        it, and on Ctrl-C, for `memplan recover`.
        """
        try:
            error, seen, written = self._stop(mark)
            if error:
                raise RecordError(
                    f"recording stopped early: {os.strerror(error)} ({self._journal}); "
                    f"it has {written} of {seen} events; fix the cause, then run "
                    f"{self._recover}"
                )
            return self._convert(seen - written)
        finally:
            _alloc.say_nothing_on_termination()

    def discard(self) -> None:
        """Stop and delete the journal."""
        self._stop(Mark.NONE, complete=False)
        _alloc.say_nothing_on_termination()
        self._journal.unlink(missing_ok=True)

    def notes(self) -> list[str]:
        """What the trace does not cover."""
        notes = self._watch.notes()
        if self._fake_mode:
            notes.append(
                f"the program uses FakeTensorMode ({self._fake_mode}): its fake "
                "tensors hold no memory and are not in the trace; --device fake "
                "records what they would hold"
            )
        if self._sites_share > NOTED_SHARE:
            notes.append(
                f"recording call sites added about {self._sites_share:.0%} to a step's "
                "time; --stacks none turns it off"
            )
        return notes

    def _note_fake_mode(self, place: str) -> None:
        self._fake_mode = self._fake_mode or place

    def _share(self) -> float:
        """Time spent on call sites since the first boundary, per time of all else."""
        if self._first is None or self._sites is None:
            return 0.0
        counts, first_ns, first_cpu_ns = self._first
        sites = self._sites.took_ns(counts)
        time_ns, _, cpu_ns = _alloc.step_usage()
        # Other programs stretch the wall time, threads of this one the CPU time.
        rest = min(time_ns - first_ns, cpu_ns - first_cpu_ns) - sites
        return sites / rest if rest > NOTED_SECONDS * 1e9 else 0.0

    def close(self) -> None:
        """Call this after the program has ended."""
        self._patches.close()
        self._watch.close()
        if self._sites is not None:
            self._sites.close()

    def _stop(self, mark: Mark, complete: bool = True) -> tuple[int, int, int]:
        """The errno that stopped the writing, or 0; events seen, and written.

        complete: whether a trace is made of them.
        """
        if self._activations is not None:
            self._activations.stop()
        self._patches.close()
        self._sites_share = self._share()
        if self._sites is not None:
            self._sites.stop()
        missed = self._observer.stop() if self._observer is not None else 0
        info = self._metadata(mark, complete)
        error, seen, written = _alloc.stop_recording(info)
        return error, seen + missed, written

    def _convert(self, dropped: int) -> Written:
        try:
            found = self._write(dropped)
        except MemplanError as failure:
            kept = f"no event is lost: make the trace with {self._recover}"
            told, shell = f"{failure}; {kept}", f"{failure.shell}; {kept}"
            raise RecordError(told, shell=shell) from failure
        except KeyboardInterrupt:
            line = printable(f"memplan: interrupted while writing: {self._remedy}")
            print(line, file=sys.stderr)
            raise
        if found is None:
            self._journal.unlink(missing_ok=True)
            text = 'the program allocated no CUDA memory; record it with device="cpu"'
            raise RecordError(text, shell=as_options(text))
        if not found.reason:
            self._journal.unlink(missing_ok=True)
        return found

    def _write(self, dropped: int) -> Recovered | None:
        """Write the traces and return the first one's; None if there are none."""
        observed = self._observer is not None and self._observer.began
        devices = Journal(self._journal).devices if observed else []
        chosen = [each for each in devices if self._options.gpu in (None, each)]
        if not chosen and devices and not self._cpu:
            listed = ", ".join(map(str, devices))
            raise RecordError(
                f"device {self._options.gpu} has no events; these have: {listed}"
            )
        if not chosen and not self._cpu:
            return None
        first: Recovered | None = None
        for device, name in paths_of(self._path, chosen).items():
            if first is not None:
                refuse_overwrite(name, self._options.force)
            found = recover_journal(self._journal, name, dropped, device)
            first = first or found
            if device is not None:
                self.paths[device] = name
        return first

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
        if complete and self._cpu:
            info = replace(info, used_bytes=used_bytes())
        if complete and self._options.names_holders:
            info = self._watch.noted(info)
        info = self._options.about(sys.modules["torch"], info)
        noted = self._activations if complete else None
        calls = None if noted is None else noted.result()
        trace = Trace(Columns.of(), info=info, calls=calls)
        return encode_metadata(self._path, trace).decode()
