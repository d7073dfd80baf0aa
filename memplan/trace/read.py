"""Read a trace, or a packing problem, from a file, whichever of its forms it has."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection

from memplan.core.plan import Plan
from memplan.core.planfile import read_plan
from memplan.core.problem import Problem
from memplan.errors import FormatError, UsageError, expected
from memplan.files import PathLike
from memplan.formats.sniff import Input, Kind, Opened, opened
from memplan.trace.importers import importer_of
from memplan.trace.lives import Lives, lives_of
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
        found = read_input(file, columns, device)
        if isinstance(found, Problem):
            raise _no_trace(file)
        return found


def read_input(
    source: Input, columns: Collection[str] | None = None, device: int | None = None
) -> Trace | Problem:
    """The same, or the Problem in a file of a form that holds one, as CSV does."""
    with opened(source) as file:
        importer = importer_of(file)
        if importer is not None:
            return importer.read(file, device)
        trace = _read(file, columns)
    held = set(trace.events.device[:1].tolist())
    if device is not None and not held <= {device}:
        raise UsageError(f"device {device}: {file.path} is of device {held.pop()}")
    return trace


def as_trace(
    source: Trace | PathLike, accepted: str = "a Trace or the path of one"
) -> Trace:
    """`source`, or the Trace in the file of that name.

    accepted: what the caller takes, for the error. Raises TypeError for anything else,
    and what `read_trace` raises.
    """
    if isinstance(source, Trace):
        return source
    if not isinstance(source, str | os.PathLike):
        raise expected(accepted, source)
    return read_trace(source)


def as_trace_or_plan(source: Trace | Plan | PathLike) -> Trace | Plan:
    """`source`, or the Trace or the Plan in the file of that name.

    Raises TypeError for anything else, and what `read_trace_or_plan` raises.
    """
    if isinstance(source, Plan):
        return source
    if isinstance(source, str | os.PathLike):
        return read_trace_or_plan(source)
    return as_trace(source, "a Trace, a Plan, or the path of one")


def read_trace_or_plan(source: Input, device: int | None = None) -> Trace | Plan:
    """The Trace or the Plan in a file; device: of a snapshot, which GPU's.

    Raises UsageError for a bare problem, and what the readers of either raise.
    """
    with opened(source) as file:
        if file.kind is Kind.PLAN:
            return read_plan(file)
        found = read_input(file, device=device)
        if isinstance(found, Problem):
            raise UsageError(f"{file.path} is a bare problem: solve it, name its plan")
        return found


def buffers_of(source: Trace | PathLike) -> Lives:
    """What is known of each allocation of a trace, or of that in a file.

    Raises TypeError for anything else, and what `read_trace` raises.
    """
    return lives_of(as_trace(source))


def _read(file: Opened, columns: Collection[str] | None) -> Trace:
    """Of memplan's own forms."""
    if file.kind is Kind.PARQUET:
        from memplan.trace.parquet import read_parquet

        return read_parquet(file, columns)
    if file.is_parquet:
        remedy = "name the trace that it was made from"
        raise FormatError(file.path, "a plan, not a trace", remedy)
    if file.kind is Kind.JOURNAL:
        problem = "a recording that did not come to its end"
        remedy = f"make a trace of it: memplan recover {shlex.quote(str(file.path))}"
        raise FormatError(file.path, problem, remedy)
    if file.kind is Kind.UNKNOWN:
        raise _no_trace(file)
    from memplan.trace.columnar_json import read_json

    return read_json(file)


def _no_trace(file: Opened) -> FormatError:
    problem = "neither a Parquet nor a JSON trace, nor a memory snapshot"
    remedy = "name a trace recorded or imported by memplan"
    return FormatError(file.path, problem, remedy)
