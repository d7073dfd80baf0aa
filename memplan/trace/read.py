"""Read a trace from a file, whichever of its forms it has."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from memplan.errors import FormatError, UsageError
from memplan.formats.sniff import Input, Kind, Opened, opened
from memplan.trace.trace import Trace


def read_trace(
    source: Input, columns: Collection[str] | None = None, device: int | None = None
) -> Trace:
    """The Trace in a ``.parquet``, ``.json`` or ``.json.gz`` file.

    source: its path, or the file as `sniff` opened it. A CUDA memory snapshot
    (``torch.cuda.memory._dump_snapshot``) will do, too: of `device`, or of the one
    device that has a history in it. What the file is, its contents tell, not its name.
    columns: those needed of a Parquet file; the others are left out, as `Columns.of`
    does, and take up no memory. Raises UsageError for a device that is not in it,
    InputError if it cannot be read, FormatError (an InputError) if it is not a whole
    and valid trace.
    """
    with opened(source) as file:
        if file.kind in (Kind.PICKLE, Kind.SNAPSHOT):
            from memplan.trace.importers.snapshot import read_snapshot

            return read_snapshot(file, device)
        trace = _read(file, columns)
    held = set(trace.events.device[:1].tolist())
    if device is not None and not held <= {device}:
        raise UsageError(f"device {device}: {file.path} is of device {held.pop()}")
    return trace


def _read(file: Opened, columns: Collection[str] | None) -> Trace:
    """Of memplan's own forms."""
    if file.kind is Kind.PARQUET:
        from memplan.trace.parquet import read_parquet

        return read_parquet(file, columns)
    if file.is_parquet:
        raise FormatError(
            file.path, "a plan, not a trace", "name the trace that it was made from"
        )
    if file.kind is Kind.JOURNAL:
        raise FormatError(
            file.path,
            "a recording that did not come to its end",
            f"make a trace of it: memplan recover {shlex.quote(str(file.path))}",
        )
    if file.kind in (Kind.UNKNOWN, Kind.CSV):
        raise FormatError(
            file.path,
            "neither a Parquet nor a JSON trace, nor a memory snapshot",
            "name a trace recorded or imported by memplan",
        )
    from memplan.trace.columnar_json import read_json

    return read_json(file)
