"""torch's own history of CUDA memory: when it begins, its step boundaries, its end."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.errors import (
    EnvironmentUnfitError,
    MemplanError,
    RecordError,
    as_options,
)
from memplan.files import refuse_overwrite
from memplan.recording.options import MAX_ENTRIES, RecordOptions, Stacks
from memplan.recording.shim import require_torch
from memplan.recording.usage import StepClock, run_stats
from memplan.trace.importers.snapshot import (
    MARK_TAG,
    HistoryMark,
    devices_of,
    from_snapshot,
)
from memplan.trace.recovery import paths_of
from memplan.trace.trace import Mark, Trace
from memplan.trace.write import write_trace

_SKIPPED = ["snapshot"]  # of which a trace says nothing


class CudaHistory:
    """torch's memory history, from the program's first use of CUDA on.

    began: whether CUDA was used, and the history with it. marks: the step boundaries
    told by `mark`, each also by `clock`.
    """

    def __init__(self, stacks: Stacks = "none", max_entries: int = MAX_ENTRIES) -> None:
        """stacks: "python" notes who asked. max_entries: kept for each device."""
        self._max_entries = max_entries
        self.began = False
        self.marks: list[HistoryMark] = []
        self.clock = StepClock()
        self._stacks = stacks
        self._torch: Any = None
        self._failure: Exception | None = None

    def arm(self, torch: Any) -> None:
        """Begin when CUDA is first used, or now if it is in use; uses no CUDA."""
        self._torch = torch
        torch.cuda._lazy_call(self._begin)

    def begin(self, torch: Any) -> None:
        """Begin now: CUDA is in use, or just about to be."""
        self._torch = torch
        self._begin()

    def mark(self, mark: Mark) -> None:
        """A step boundary is here. Events after it bear a tag where torch can tag."""
        self.marks.append(HistoryMark(mark, time.time_ns() // 1000))
        self.clock.note(mark)
        if self.began:
            _tag(self._torch.cuda.memory, f"{MARK_TAG}{len(self.marks)}")

    def fetch(self) -> object:
        """The snapshot, and no more history from here on.

        None if CUDA was not used. Raises RecordError if torch would not keep or give
        the history.
        """
        torch, self._torch = self._torch, None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise _refused(failure)
        if not self.began or torch is None:
            return None
        self.began = False
        memory = torch.cuda.memory
        try:
            snapshot: object = memory._snapshot()
            memory._record_memory_history(enabled=None)
            _tag(memory, "")
        except RuntimeError as error:
            raise _refused(error) from error
        return snapshot

    def _begin(self) -> None:
        if self._torch is None:  # CUDA was first used after the recording's end
            return
        function = self._torch.cuda.memory._record_memory_history
        try:
            function(**history_arguments(function, self._stacks, self._max_entries))
        except Exception as error:  # never raise into the program: reported later
            self._failure = error
            return
        self.began = True
        _tag(self._torch.cuda.memory, f"{MARK_TAG}{len(self.marks)}")


def _tag(memory: Any, tag: str) -> None:
    """Tag the events from here on, unless the program has tags of its own.

    memory: the module torch.cuda.memory. Where it cannot tag, times have to do.
    """
    with contextlib.suppress(Exception):  # in the midst of somebody's program
        current: str = memory._get_memory_metadata()
        if not current or current.startswith(MARK_TAG):
            memory._set_memory_metadata(tag)


def history_arguments(
    function: Callable[..., object], stacks: Stacks, max_entries: int
) -> dict[str, object]:
    """What to call `_record_memory_history` with: only what this torch's takes."""
    wanted = {
        "enabled": "all",
        "context": "alloc" if stacks == "python" else None,
        "stacks": "python",
        "max_entries": max_entries,
        "clear_history": True,
        "skip_actions": _SKIPPED,
    }
    known = inspect.signature(function).parameters
    return {name: value for name, value in wanted.items() if name in known}


def _refused(error: Exception) -> RecordError:
    return RecordError(
        f"torch does not record a history of CUDA memory ({error}); check that CUDA "
        "works and that no other allocator is in place"
    )


def require_gpu() -> Any:
    """The torch module. Raises EnvironmentUnfitError where it finds no GPU."""
    torch = require_torch("recording CUDA memory")
    if not torch.version.cuda or torch.cuda.device_count() == 0:
        text = (
            f"torch {torch.__version__} finds no CUDA GPU; record with "
            'device="cpu", or check the driver with nvidia-smi'
        )
        raise EnvironmentUnfitError(text, shell=as_options(text))
    return torch


def traces_of(
    snapshot: object, history: CudaHistory, options: RecordOptions
) -> dict[int, Trace]:
    """The trace of each device in a snapshot that `history` fetched, by its index.

    A history that filled up has lost its oldest events: its trace says that it is not
    complete. Raises RecordError if no device that was asked for has any events.
    """
    found = devices_of(snapshot)
    chosen = [index for index in found if options.gpu in (None, index)]
    if not chosen:
        text = 'the program allocated no CUDA memory; record it with device="cpu"'
        if options.gpu is not None:
            some = ", ".join(map(str, found)) or "none"
            text = f"device {options.gpu} has no events; these have: {some}"
        raise RecordError(text, shell=as_options(text))
    return {index: _trace_of(snapshot, history, options, index) for index in chosen}


def write_traces(traces: dict[int, Trace], path: Path, force: bool) -> dict[int, Path]:
    """Write each device's trace, the first to `path`; where each one is.

    Raises RecordError if one cannot be written, or one beyond the first would replace
    a file and `force` is off.
    """
    paths: dict[int, Path] = {}
    try:
        for device, name in paths_of(path, list(traces)).items():
            if device is None:
                continue
            if paths:
                refuse_overwrite(name, force)
            write_trace(traces[device], name)
            paths[device] = name
    except MemplanError as failure:
        raise RecordError(f"the recording of CUDA memory is lost: {failure}") from None
    return paths


def _trace_of(
    snapshot: object, history: CudaHistory, options: RecordOptions, device: int
) -> Trace:
    found = from_snapshot(snapshot, device=device, marks=history.marks)
    overflowed = found.entries >= options.max_entries
    info = replace(
        found.trace.info,
        run=run_stats(history.clock.boundaries(), history.clock.steps),
        # Frees of blocks older than the recording are no loss, unless it was cut.
        dropped_events=max(1, found.unmatched_frees) if overflowed else 0,
        complete=not overflowed,
    )
    torch = require_torch("recording CUDA memory")
    return replace(found.trace, info=options.about(torch, info))
