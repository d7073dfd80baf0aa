"""Recording CUDA memory from torch's own history of it. Experimental.

torch's allocator keeps the history, from the moment CUDA is first used; here it is
fetched at the end and made a trace for each device. Unlike a recording on the CPU
there is no journal: what a killed process did is lost.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from memplan.core.plan import Program
from memplan.errors import EnvironmentUnfitError, MemplanError, RecordError, UsageError
from memplan.files import refuse_overwrite
from memplan.recording.boundary import Boundaries
from memplan.recording.cuda_history import MAX_ENTRIES, CudaHistory
from memplan.recording.ranks import rank, ranks
from memplan.recording.session import Recording, Stacks, run_stats
from memplan.recording.shim import require_torch
from memplan.trace.importers.snapshot import devices_of, from_snapshot
from memplan.trace.trace import Mark, Trace
from memplan.trace.write import check_suffix, write_trace
from memplan.version import __version__

Device = Literal["cpu", "cuda", "auto"]


class CudaRecording:
    """A recording of this process's CUDA memory.

    trace: of the first device, at `path`; traces: of every device recorded, by its
    index. Beyond the first, each is at `path` with its device's name before the
    suffix: train.cuda1.parquet.
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
        device: int | None = None,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """Prepare to record into `path` (.parquet, .json or .json.gz).

        device: record only this one. max_entries: of each device's history; one that
        overflows is reported, and its trace marked incomplete. The others are those of
        `memplan.recording.session.Recording`.
        """
        if steps is not None and steps < 1:
            raise UsageError(f"steps={steps}: record at least one step")
        self.path = Path(path)
        self.trace: Trace | None = None
        self.traces: dict[int, Trace] = {}
        self._steps, self._force, self._device = steps, force, device
        self._program, self._argv = program or Program(), argv
        self._history = CudaHistory(stacks, max_entries)
        self._counts = dict.fromkeys(Mark, 0)
        self._boundaries = Boundaries(
            self._mark, (Mark.FORWARD, Mark.OPTIMIZER, Mark.EXPLICIT)
        )
        self._failure: MemplanError | None = None
        self._running = False

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfitError where torch finds no GPU."""
        check_suffix(self.path)
        refuse_overwrite(self.path, self._force)
        torch = require_torch("recording CUDA memory")
        if not torch.version.cuda or torch.cuda.device_count() == 0:
            raise EnvironmentUnfitError(
                f"torch {torch.__version__} finds no CUDA GPU; record with --device "
                "cpu, or check the driver with nvidia-smi"
            )
        self._boundaries.start()
        self._history.arm(torch)
        self._running = True

    def finish(self) -> None:
        """Stop, and write the traces; harmless when not running.

        Raises RecordError if CUDA was not used, if torch would not give the history,
        or a trace could not be written.
        """
        if self._running:
            self._running = False
            self._boundaries.stop()
            snapshot = self._history.fetch()
            if snapshot is None:
                raise RecordError(
                    "the program did not use CUDA; record it with --device cpu"
                )
            self.traces = traces_of(
                snapshot, self._history, self._program, self._argv, self._device
            )
            self.trace = write_traces(self.traces, self.path, self._force)
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _mark(self, mark: Mark) -> None:
        self._history.mark(mark)
        self._counts[mark] += 1
        # An optimizer's mark ends a step; the others begin one.
        ended = self._counts[mark] - (mark is not Mark.OPTIMIZER)
        strongest = max(kind for kind in Mark if self._counts[kind])
        if self._steps is not None and mark is strongest and ended >= self._steps:
            try:
                self.finish()
            except MemplanError as failure:  # the program runs on: told at the end
                self._failure = failure


class AutoRecording(Recording):
    """A recording of CUDA memory if the program uses any, or else of the CPU's.

    The parameters are those of Recording; `traces` is {} when the CPU was recorded.
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
        super().__init__(
            path, steps=steps, stacks=stacks, force=force, program=program, argv=argv
        )
        self.traces: dict[int, Trace] = {}
        self._history = CudaHistory(stacks)
        self._identity = program or Program()
        self._command = argv
        self._replace = force

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfitError where recording is not possible."""
        super().start()
        torch = require_torch("recording")
        if torch.version.cuda:
            self._history.arm(torch)

    def finish(self) -> None:
        """Stop, and write the trace, or traces; harmless when not running.

        Raises RecordError as `Recording.finish` and `CudaRecording.finish` do.
        """
        failure: MemplanError | None = None
        try:
            super().finish()
        except MemplanError as error:
            failure = error
        snapshot = self._history.fetch()
        if snapshot is None or not devices_of(snapshot):
            if failure is not None:
                raise failure
            return
        self.traces = traces_of(snapshot, self._history, self._identity, self._command)
        self.trace = write_traces(self.traces, self.path, self._replace)

    def _mark(self, mark: Mark) -> None:
        self._history.mark(mark)
        super()._mark(mark)


def traces_of(
    snapshot: object,
    history: CudaHistory,
    program: Program,
    argv: tuple[str, ...] = (),
    device: int | None = None,
) -> dict[int, Trace]:
    """The trace of each device in a snapshot that `history` fetched, by its index.

    device: only this one. A history that filled up has lost its oldest events: its
    trace says that it is not complete. Raises RecordError if no device has any events.
    """
    found = devices_of(snapshot)
    chosen = [index for index in found if device in (None, index)]
    if not chosen:
        raise RecordError(
            f"nothing was asked of device {device}; there are "
            f"{', '.join(map(str, found)) or 'none'} with events"
            if device is not None
            else "the program allocated no CUDA memory; record it with --device cpu"
        )
    return {
        index: _trace_of(snapshot, history, program, argv, index) for index in chosen
    }


def write_traces(traces: dict[int, Trace], path: Path, force: bool) -> Trace:
    """Write each device's trace, the first to `path`; the first one is returned.

    Raises RecordError if one cannot be written, or one beyond the first would replace
    a file and `force` is off.
    """
    try:
        for place, (device, trace) in enumerate(traces.items()):
            name = path if place == 0 else path_of(path, device)
            if place:
                refuse_overwrite(name, force)
            write_trace(trace, name)
    except MemplanError as failure:
        raise RecordError(f"the recording of CUDA memory is lost: {failure}") from None
    return next(iter(traces.values()))


def path_of(path: Path, device: int) -> Path:
    """Where the trace of a device beyond the first goes, beside `path`."""
    name = path.name
    suffix = next(s for s in (".json.gz", ".json", ".parquet") if name.endswith(s))
    return path.with_name(f"{name.removesuffix(suffix)}.cuda{device}{suffix}")


def new_recording(
    device: Device,
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    stacks: Stacks = "none",
    force: bool = False,
    program: Program | None = None,
    argv: tuple[str, ...] = (),
) -> Recording | CudaRecording:
    """A recording of the memory of `device`, not begun yet; see Recording."""
    kinds: dict[str, type[Recording] | type[CudaRecording]]
    kinds = {"cpu": Recording, "cuda": CudaRecording, "auto": AutoRecording}
    return kinds[device](
        path, steps=steps, stacks=stacks, force=force, program=program, argv=argv
    )


def _trace_of(
    snapshot: object,
    history: CudaHistory,
    program: Program,
    argv: tuple[str, ...],
    device: int,
) -> Trace:
    torch = require_torch("recording CUDA memory")
    found = from_snapshot(snapshot, device=device, marks=history.marks)
    info = found.trace.info
    overflowed = found.entries >= history.max_entries
    info = replace(
        info,
        program=replace(
            program,
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            marks=info.program.marks,
        ),
        run=run_stats(history.boundaries),
        argv=argv,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        # Frees of blocks older than the recording are no loss, unless it was cut.
        dropped_events=max(1, found.unmatched_frees) if overflowed else 0,
        complete=not overflowed,
        producer=f"memplan {__version__}",
        rank=rank() or 0,
        ranks=ranks(),
    )
    return replace(found.trace, info=info)
