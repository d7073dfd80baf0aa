"""Recording CUDA memory from torch's own history of it. Experimental.

It is what is left where torch's allocator cannot be observed: see `cuda_observer`.
torch's allocator keeps the history, from the moment CUDA is first used; here what was
fetched at the end is made a trace for each device. There is no journal: what a killed
process did is lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError, MemplanError, RecordError
from memplan.files import refuse_overwrite
from memplan.recording.cuda_history import CudaHistory
from memplan.recording.options import RecordOptions
from memplan.recording.shim import require_torch
from memplan.recording.stats import run_stats
from memplan.trace.importers.snapshot import devices_of, from_snapshot
from memplan.trace.recovery import paths_of
from memplan.trace.trace import Trace
from memplan.trace.write import write_trace


def require_gpu() -> Any:
    """The torch module. Raises EnvironmentUnfitError where it finds no GPU."""
    torch = require_torch("recording CUDA memory")
    if not torch.version.cuda or torch.cuda.device_count() == 0:
        raise EnvironmentUnfitError(
            f"torch {torch.__version__} finds no CUDA GPU; record with --device "
            "cpu, or check the driver with nvidia-smi"
        )
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
        raise RecordError(
            f"nothing was asked of device {options.gpu}; there are "
            f"{', '.join(map(str, found)) or 'none'} with events"
            if options.gpu is not None
            else "the program allocated no CUDA memory; record it with --device cpu"
        )
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
