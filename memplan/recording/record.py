"""A recording, from its start to the trace on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memplan.errors import MemplanError, RecordError, UsageError, as_options
from memplan.files import refuse_overwrite
from memplan.recording.boundary import (
    MOST_EVENTS,
    SETTLED_EVENTS,
    SETTLED_FAKE_STEPS,
    SETTLED_STEPS,
    Boundaries,
    Settling,
    StepCount,
)
from memplan.recording.cuda_history import (
    CudaHistory,
    require_gpu,
    traces_of,
    write_traces,
)
from memplan.recording.cuda_observer import CudaObserver
from memplan.recording.events import Events
from memplan.recording.fake import FakeEvents
from memplan.recording.options import DEFAULTS, Device, RecordOptions, Stacks, Steps
from memplan.recording.shim import require_torch
from memplan.trace.importers.snapshot import devices_of
from memplan.trace.lives import Summary
from memplan.trace.read import read_trace
from memplan.trace.recovery import Written
from memplan.trace.trace import Mark, Trace
from memplan.trace.write import check_suffix


class Recording:
    """One recording of this process.

    path: absolute path of the trace. written: a summary of the trace, None until
    `finish` has run. paths: the trace of each GPU by its index, {} for a CPU recording.
    The first GPU's is at `path`; the others have the device's name before the suffix:
    train.cuda1.parquet. cpu_failure: why the CPU's trace could not be written; `finish`
    raises it unless there is a GPU's trace. stopped: why the recording stopped before
    the program ended, "" if it did not.
    """

    def __init__(
        self, path: str | os.PathLike[str], options: RecordOptions = DEFAULTS
    ) -> None:
        """Prepare to record into `path` (.parquet, .json or .json.gz)."""
        # The program may change its working directory.
        self.path = Path(os.path.abspath(path))
        self.written: Written | None = None
        self.paths: dict[int, Path] = {}
        self.cpu_failure: MemplanError | None = None
        self._read: dict[Path, Trace] = {}
        self._options = options
        self._observer: CudaObserver | None = None
        self._history: CudaHistory | None = None
        if options.device in ("auto", "cuda"):
            if options.history != "torch":
                self._observer = CudaObserver()
            if options.history != "slot":
                self._history = CudaHistory(options.stacks, options.max_entries)
        self._events: Events | FakeEvents | None = None
        if options.fake is not None:
            self._events = FakeEvents(self.path, options, options.fake)
        elif options.device != "cuda" or self._observer is not None:
            self._events = Events(self.path, options, self._observer)
        self._count = StepCount(options.limit)
        few = options.fake is not None or options.activations
        alike = SETTLED_FAKE_STEPS if few else SETTLED_STEPS
        self._settling = Settling(alike) if options.steps == "auto" else None
        self._ending = False  # the program, at its next mark
        self.stopped = ""
        self._boundaries = Boundaries(
            self._mark, (Mark.FORWARD, Mark.OPTIMIZER, Mark.EXPLICIT)
        )
        self._failure: Exception | None = None
        self._running = False
        self._process = os.getpid()

    @property
    def trace(self) -> Trace:
        """The recorded trace, read from the file on first access.

        Raises UsageError until `finish` has written it, InputError if the file is gone.
        """
        if self.written is None:
            raise UsageError(
                f"there is no trace in {self.path}: the recording is still open, or "
                "failed; read `trace` after the `with` block"
            )
        return self._trace_at(self.path)

    @property
    def traces(self) -> dict[int, Trace]:
        """The trace of each recorded GPU by index, read from file on first access.

        Raises InputError if a file is gone.
        """
        return {device: self._trace_at(path) for device, path in self.paths.items()}

    @property
    def notes_activations(self) -> bool:
        """Whether calls and saved tensors are recorded, too."""
        return self._options.activations

    @property
    def observed(self) -> bool:
        """Whether CUDA events came from torch's allocator, not from torch's history."""
        return self._observer is not None and self._observer.began

    def _trace_at(self, path: Path) -> Trace:
        if path not in self._read:
            self._read[path] = read_trace(path)
        return self._read[path]

    @property
    def notes(self) -> list[str]:
        """Assumptions of the recording, and what of the program it does not cover."""
        found = self._events.notes() if self._events is not None else []
        if self._observer is not None and self._observer.fault and self.paths:
            found.append(
                "CUDA memory was recorded from torch's memory history: "
                + self._observer.fault
            )
        return found

    def start(self) -> None:
        """Begin.

        Raises EnvironmentUnfitError where recording is not possible, UsageError if the
        file exists and `force` is off, or another recording is running.
        """
        check_suffix(self.path)
        refuse_overwrite(self.path, self._options.force)
        only_cuda = self._options.device == "cuda"
        torch = require_gpu() if only_cuda else require_torch("recording")
        try:
            if self._events is not None:
                self._events.prepare()
            self._boundaries.start()
            if self._events is not None:
                self._events.start()
        except BaseException:
            self._boundaries.stop()
            if self._events is not None:
                self._events.close()
            raise
        if torch.version.cuda:
            self._watch_cuda(torch)
        self._running = True
        self._process = os.getpid()

    def _watch_cuda(self, torch: Any) -> None:
        """Record CUDA memory from its first use on."""
        if self._observer is not None:
            instead = None if self._history is None else self._history.begin
            self._observer.arm(torch, instead)
        elif self._history is not None:
            self._history.arm(torch)

    def finish(self) -> None:
        """Stop and write the traces; does nothing when not running.

        Does nothing in a forked child: the recording is its parent's. Raises
        RecordError if the program never used the device, or if events or a trace could
        not be written; a CPU recording then keeps its journal for `memplan recover`.
        """
        if os.getpid() != self._process:
            return
        if not self._ending:
            self._boundaries.stop()
        if self._running:
            self._running = False
            self._finish()
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _finish(self) -> None:
        if self.observed:
            self._finish_events()
            return
        only_cuda = self._options.device == "cuda"
        if only_cuda and isinstance(self._events, Events):
            self._events.discard()
        elif self._events is not None:
            try:
                self._finish_events()
            except MemplanError as error:
                self.cpu_failure = error
        try:
            self._finish_history()
        except MemplanError as error:
            if only_cuda:
                raise
            left = self.cpu_failure or f"{self.path} may hold the CPU's instead"
            told, shell = f"{error}; {left}", f"{error.shell}; {left}"
            raise RecordError(told, shell=shell) from error
        if self.cpu_failure is not None and not self.paths:
            raise self.cpu_failure

    def _finish_events(self) -> None:
        if self._events is not None:
            self.written = self._events.finish(self._count.mark)
        if isinstance(self._events, Events):
            self.paths = self._events.paths

    def _finish_history(self) -> None:
        """Make the GPU's traces from torch's memory history, if that was used."""
        if self._history is None and self._observer is not None:
            self._used(None)
            if self._observer.fault:
                raise RecordError(
                    f"nothing of CUDA was recorded: {self._observer.fault}"
                )
        snapshot = self._history.fetch() if self._history is not None else None
        if self._history is not None and self._used(snapshot):
            traces = traces_of(snapshot, self._history, self._options)
            self.paths = write_traces(traces, self.path, self._options.force)
            self._read = {path: traces[each] for each, path in self.paths.items()}
            first = traces[next(iter(self.paths))]
            self.written = Written(first.info, Summary.of(first.events))

    def _used(self, snapshot: object) -> bool:
        """Whether to make a trace of the GPU."""
        if self._options.device != "cuda":
            return snapshot is not None and bool(devices_of(snapshot))
        unused = self._observer is None or not self._observer.fault
        if snapshot is None and unused:
            text = 'the program did not use CUDA; record it with device="cpu"'
            raise RecordError(text, shell=as_options(text))
        return True

    def _mark(self, mark: Mark) -> None:
        if self._ending:
            raise SystemExit(0)
        digest = 0
        if self._events is not None:
            digest = self._events.mark(mark)
        if self._history is not None:
            self._history.mark(mark)
        if self._is_last(mark, digest):
            self._stop()

    def _is_last(self, mark: Mark, digest: int) -> bool:
        """Whether the recording stops here by itself."""
        if self._count.add(mark):
            self.stopped = f"after {self._options.limit:,} steps (--steps)"
        if self._settling is not None and self._events is not None:
            self._settling.add(mark, digest)
            events = self._events.events
            few = self._options.then_exit or self._options.activations
            enough = few or events >= SETTLED_EVENTS
            if self._settling.settled and enough:
                self.stopped = "the steps repeat (--steps all records all)"
            elif events >= MOST_EVENTS:
                self.stopped = (
                    f"after {MOST_EVENTS:,} events; the steps do not repeat "
                    "(--steps all records all)"
                )
        return bool(self.stopped)

    def _stop(self) -> None:
        """Finish while the program runs on, or end the program."""
        try:
            self._ending = self._options.then_exit
            self.finish()
        except Exception as failure:  # raised by `close`: the program runs on
            self._failure = failure
        if self._ending:
            raise SystemExit(0)

    def close(self) -> None:
        """`finish` at the program's end."""
        self._ending = False
        try:
            self.finish()
        finally:
            if self._events is not None:
                self._events.close()


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    device: Device | str = "auto",
    steps: Steps = "auto",
    stacks: Stacks = "site",
    activations: bool = False,
    force: bool = False,
) -> Iterator[Recording]:
    """Record what the block allocates, into `path` (.parquet, .json or .json.gz).

    `with memplan.record("trace.parquet") as recording: train()`; afterwards
    `recording.trace` is the Trace. The parameters are those of `RecordOptions`, and
    the errors those of `Recording`.
    """
    options = RecordOptions(
        device=device, steps=steps, stacks=stacks, activations=activations, force=force
    )
    with record_with(path, options) as recording:
        yield recording


@contextlib.contextmanager
def record_with(
    path: str | os.PathLike[str], options: RecordOptions
) -> Iterator[Recording]:
    """As `record`, with any options."""
    recording = Recording(path, options)
    recording.start()
    try:
        yield recording
    finally:
        recording.close()
