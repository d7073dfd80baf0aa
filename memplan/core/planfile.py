"""Plan files: JSON, integers only, the same bytes for the same plan.

One top-level field a line, keys sorted, one buffer a line. The checksum is the
SHA-256 of the file without the line that holds it::

    grep -v '^"checksum"' plan.json | sha256sum

It finds accident, not malice: whoever applies a plan verifies its contents. Hence
two kinds of trouble. What makes a file unreadable (not JSON, a field that is missing,
out of range or repeated, requests that do not add up, a wrong checksum) is a
FormatError here. What makes a readable plan wrong (buffers that overlap, stand
askew or reach beyond the stated peak, a fingerprint that is not theirs) is left to
`memplan.core.verify`, which names every buffer concerned.

A plan of very many buffers may be Parquet (see `memplan.core.planparquet`), by its
file's name: the same fields, with the hot buffers in columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.placement import Placement
from memplan.core.plan import Plan, RunStats
from memplan.core.plancheck import check_structure
from memplan.core.planread import (
    MAX_PLAN_BYTES,
    SCHEMA,
    VERSION,
    load_plan,
    read_header,
    read_plan,
)
from memplan.core.problem import FREE
from memplan.errors import InputError
from memplan.files import refuse_overwrite, write_bytes
from memplan.formats.strictjson import Refused
from memplan.formats.table import Table
from memplan.version import __version__

__all__ = ["SCHEMA", "VERSION", "dump_plan", "load_plan", "read_plan", "write_plan"]

PARQUET = ".parquet"
MANY_BUFFERS = 100_000  # from which on Parquet is the better form

# The columns of a placement's buffers: integers; texts or lists of lists of integers.
Buffers: TypeAlias = "dict[str, Int64Array | list[Any]]"

_encode = json.JSONEncoder(sort_keys=True).encode


def write_plan(
    plan: Plan, path: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Write `plan` to `path`, whole or not at all; `force` replaces a file.

    A name that ends in .parquet makes it Parquet, any other one JSON. Raises UsageError
    if the file exists, InputError as `dump_plan` does, and EnvironmentUnfitError if the
    disk refuses.
    """
    refuse_overwrite(Path(path), force)
    if Path(path).suffix == PARQUET:
        from memplan.core.planparquet import write_parquet

        fields, columns = _fields(plan)
        write_parquet(fields, columns, path)
    else:
        write_bytes(path, dump_plan(plan))


def dump_plan(plan: Plan) -> bytes:
    """The bytes of the plan's file.

    Labels name the buffers of an imported problem. The buffers of a recorded one
    are named by their requests, and its labels, if any, are not kept. Raises
    InputError for a plan that `load_plan` would refuse.
    """
    fields, columns = _fields(plan)
    fields["buffers"] = _rows(columns)
    digest = hashlib.sha256(_file(fields)).hexdigest()
    data = _file(fields | {"checksum": _encode(digest)})
    if len(data) > MAX_PLAN_BYTES:
        raise InputError(
            f"the plan's file would take {len(data)} bytes, more than the limit of "
            f"{MAX_PLAN_BYTES}; plan fewer buffers, or write {PARQUET}"
        )
    return data


def _fields(plan: Plan) -> tuple[dict[str, str], Buffers]:
    """All fields of the file as JSON, but for the hot buffers; and those in columns."""
    header = _header(plan)
    read_header(Table.of(header, "plan", frozenset(header)))
    check_structure(plan, "plan")
    warmup = "null"
    if plan.warmup is not None:
        ticks = {"ticks": str(plan.warmup.ticks)}
        warmup = _object(_with_rows(plan.warmup) | ticks)
    fields = {name: _encode(value) for name, value in header.items()}
    if plan.elastic:
        fields["elastic"] = "true"
    if plan.lifespan_bytes:
        fields["lifespan_bytes"] = str(plan.lifespan_bytes)
    if plan.lanes:
        fields["lanes"] = str(plan.lanes)
    if plan.kinds:
        kinds = [
            _object(_with_rows(kind) | {"seen": str(kind.seen)}) for kind in plan.kinds
        ]
        fields["kinds"] = "[\n" + ",\n".join(kinds) + "\n]"
    hot, columns = _placement(plan.hot)
    return fields | hot | {"warmup": warmup}, columns


def _header(plan: Plan) -> dict[str, object]:
    made, run = plan.provenance, plan.provenance.recorded
    device = asdict(made.recorded_device)
    return {
        "bounds": {
            "lower_bound": int(plan.lower_bound),
            "proved_optimal": bool(plan.proved_optimal),
        },
        "device": {"type": made.device},
        "length": plan.problem.length,
        "method": made.method,
        "peak": plan.peak,
        "producer": f"memplan {__version__}",
        "program": asdict(made.program),
        "recorded": {
            "milli_faults_per_step": _rounded(run.page_faults_per_step * 1e3),
            "peak_rss_bytes": run.peak_rss_bytes,
            "step_nanoseconds": _rounded(run.step_seconds * 1e9),
            **_conditions(run),
            **{name: value for name, value in device.items() if value},
        },
        "schema": SCHEMA,
        "seed": made.seed,
        "trace": {
            "buffers": len(plan.problem),
            "fingerprint": plan.problem.fingerprint(),
            **asdict(made.source),
        },
        "version": VERSION,
    }


def _conditions(run: RunStats) -> dict[str, int | Refused]:
    """What is known of how the recording was made."""
    found: dict[str, int | Refused] = {
        "cpu_nanoseconds": _rounded(run.cpu_seconds * 1e9),
        "milli_load": _rounded(run.load * 1e3),
        "steps": run.steps,
    }
    return {name: value for name, value in found.items() if value != 0}


def _rounded(value: float) -> int | Refused:
    return round(value) if math.isfinite(value) else Refused(str(value))


def _with_rows(placed: Placement) -> dict[str, str]:
    """The fields of a placement as JSON, its buffers included."""
    fields, columns = _placement(placed)
    return fields | {"buffers": _rows(columns)}


def _placement(placed: Placement) -> tuple[dict[str, str], Buffers]:
    """The fields that all placements have in common, as JSON, and the buffers."""
    problem, requests = placed.problem, placed.requests
    buffers: Buffers = {
        "lower": problem.lower,
        "offset": placed.offsets,
        "size": problem.size,
        "upper": problem.upper,
    }
    alignments = np.unique(problem.alignment).tolist() or [1]
    if len(alignments) > 1:
        buffers["alignment"] = problem.alignment
    if (problem.fixed != FREE).any():
        buffers["fixed"] = problem.fixed
    if problem.gaps is not None:
        rows_of_gaps = problem.gaps.by_buffer(len(problem))
        buffers["gaps"] = [list(map(list, gaps)) for gaps in rows_of_gaps]
    unplanned: Buffers = {"id": [], "size": []}
    if requests is not None:
        buffers["id"] = requests.by_buffer()
        rows = np.flatnonzero(~requests.planned)
        unplanned = {"id": rows, "size": requests.size[rows]}
    elif problem.labels is not None:
        buffers["id"] = list(problem.labels)
    else:
        buffers["id"] = np.arange(len(problem))
    fields = {
        "alignment": str(alignments[0]) if len(alignments) == 1 else "null",
        "starts": "null" if requests is None else str(list(map(int, requests.starts))),
        "unplanned": _rows(unplanned),
    }
    return fields, buffers


def _rows(columns: Buffers) -> str:
    keys = sorted(columns)
    row = "{" + ", ".join(f'"{key}": %s' for key in keys) + "}"
    values = zip(*(_as_json(key, columns[key]) for key in keys), strict=True)
    text = ",\n".join(map(row.__mod__, values))
    return f"[\n{text}\n]" if text else "[]"


def _as_json(key: str, column: Int64Array | list[Any]) -> Iterable[object]:
    """The values of a column, to be written as they print."""
    if isinstance(column, list):
        return map(_encode, column) if key == "id" else column
    values: list[object] = column.tolist()
    if key == "fixed":
        return ["null" if value == FREE else value for value in values]
    return values


def _object(fields: dict[str, str]) -> str:
    lines = ",\n".join(f'"{key}": {fields[key]}' for key in sorted(fields))
    return f"{{\n{lines}\n}}"


def _file(fields: dict[str, str]) -> bytes:
    return f"{_object(fields)}\n".encode("ascii")
