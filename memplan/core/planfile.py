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
import math
import os
import shlex
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from memplan.arrays import Int64Array
from memplan.core.plan import (
    DeviceRun,
    Placement,
    Plan,
    Program,
    Provenance,
    Requests,
    RunStats,
    Source,
    Stated,
    StepKind,
    Warmup,
)
from memplan.core.planrows import (
    REMEDY,
    Buffers,
    Columns,
    as_object,
    as_rows,
    check_structure,
    encode,
    placement,
    placement_fields,
    split_checksum,
)
from memplan.core.problem import Problem
from memplan.core.recompute import KEYS, Recomputation, recomputation_from
from memplan.errors import FormatError, InputError, expected
from memplan.files import PathLike, refuse_overwrite, write_bytes
from memplan.formats.sniff import Input, Kind, begins_as, opened
from memplan.formats.strictjson import Refused, parse, shown
from memplan.formats.table import Table, check_version
from memplan.version import __version__

SCHEMA = "memplan.plan"
VERSION = 1
MAX_PLAN_BYTES = 128 << 20  # more than a million buffers

_HEADER = {
    "bounds": frozenset({"lower_bound", "proved_optimal"}),
    "device": frozenset({"type"}),
    "program": frozenset({"marks", "script", "sha256", "threads", "torch"}),
    "recorded": frozenset(
        {"milli_faults_per_step", "peak_rss_bytes", "step_nanoseconds"}
    ),
    "trace": frozenset({"buffers", "fingerprint", "name", "sha256", "step"}),
}
_PLACEMENT = frozenset({"alignment", "buffers", "starts", "unplanned"})
_KEYS = (
    frozenset(_HEADER)
    | frozenset({"checksum", "length", "method", "peak", "producer", "schema"})
    | frozenset({"seed", "version", "warmup"})
    | _PLACEMENT
)
# Left out where there is nothing to say.
_EXTRA = frozenset({"elastic", "kinds", "lanes", "lifespan_bytes", "recompute"})
_DEVICE = frozenset(each.name for each in fields(DeviceRun))
# Of `recorded`.
_CONDITIONS = _DEVICE | {"cpu_nanoseconds", "milli_load", "steps"}
# What is no plan by its first bytes, and the command to give it to.
_OTHERS = {
    Kind.PARQUET: ("a Parquet file, as traces are, not a plan", "memplan solve"),
    Kind.PICKLE: ("a pickle, as memory snapshots are, not a plan", "memplan solve"),
    Kind.GZIP: ("compressed with gzip", "gunzip"),
}
PARQUET = ".parquet"
MANY_BUFFERS = 100_000  # from which on Parquet is the better form


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
    fields["buffers"] = as_rows(columns)
    digest = hashlib.sha256(_file(fields)).hexdigest()
    data = _file(fields | {"checksum": encode(digest)})
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
        warmup = as_object(_with_rows(plan.warmup) | ticks)
    fields = {name: encode(value) for name, value in header.items()}
    if plan.elastic:
        fields["elastic"] = "true"
    if plan.lifespan_bytes:
        fields["lifespan_bytes"] = str(plan.lifespan_bytes)
    if plan.lanes:
        fields["lanes"] = str(plan.lanes)
    if plan.recompute is not None:
        fields["recompute"] = encode(asdict(plan.recompute))
    if plan.kinds:
        kinds = [
            as_object(_with_rows(kind) | {"seen": str(kind.seen)})
            for kind in plan.kinds
        ]
        fields["kinds"] = "[\n" + ",\n".join(kinds) + "\n]"
    hot, columns = placement_fields(plan.hot)
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
    fields, columns = placement_fields(placed)
    return fields | {"buffers": as_rows(columns)}


def _file(fields: dict[str, str]) -> bytes:
    return f"{as_object(fields)}\n".encode("ascii")


def read_plan(source: Input) -> Plan:
    """The plan in a file, given by its path or opened.

    Raises InputError if it cannot be read, FormatError if it is not a sound plan
    file. The plan need not verify: `memplan.core.verify.verify` tells.
    """
    with opened(source) as file:
        if file.is_parquet and file.kind is Kind.PLAN:
            from memplan.core.planparquet import read_parquet

            value, columns = read_parquet(file, MAX_PLAN_BYTES)
            return _plan(value, None, os.fspath(file.path), columns)
        data, name = file.read(MAX_PLAN_BYTES), os.fspath(file.path)
        _refuse_others(data, name)
        return _plan(file.json(REMEDY), data, name)


def as_plan(source: Plan | PathLike) -> Plan:
    """`source`, or the plan in the file of that name.

    Raises TypeError for anything else, and what `read_plan` raises.
    """
    if isinstance(source, Plan):
        return source
    if not isinstance(source, str | os.PathLike):
        raise expected("a Plan or the path of one", source)
    return read_plan(source)


def load_plan(data: bytes, name: str = "plan") -> Plan:
    """The plan in `data`; `name` stands for the file in messages.

    Raises FormatError naming the field or the buffer at fault.
    """
    _refuse_others(data, name)
    return _plan(parse(data, name, REMEDY), data, name)


def _refuse_others(data: bytes, name: str) -> None:
    """Raise FormatError for a file that cannot be a plan's, in words."""
    kind, command = _OTHERS.get(begins_as(data), ("", ""))
    if kind:
        raise FormatError(name, kind, f"run {command} {shlex.quote(name)}")
    if not data.strip():
        raise FormatError(name, "the file is empty", REMEDY)


def _plan(
    value: object, data: bytes | None, name: str, columns: Columns | None = None
) -> Plan:
    """data: the file's bytes, whose sum is to be checked. columns: the hot buffers."""
    _check_schema(value, name)
    keys = _KEYS | _EXTRA.intersection(value if isinstance(value, dict) else ())
    table = Table.of(value, name, keys, remedy=REMEDY)
    if data is not None:
        _check_sum(table, data)
    hot = placement(
        table,
        None if table.fields["length"] is None else table.integer("length", 1),
        columns,
    )
    header = read_header(table)
    stated = table.table("trace", _HEADER["trace"]).integer("buffers")
    if stated != len(hot.problem):
        raise table.error(
            "trace.buffers", f"is {stated}, and {len(hot.problem)} are listed"
        )
    plan = Plan(
        hot,
        warmup=_warmup(table),
        kinds=_kinds(table),
        elastic="elastic" in table.fields and table.flag("elastic"),
        lifespan_bytes=_optional(table, "lifespan_bytes"),
        lanes=_optional(table, "lanes"),
        recompute=_recompute(table),
        **header,
    )
    check_structure(plan, name, REMEDY)
    return plan


def read_header(table: Table) -> dict[str, Any]:
    """What `Plan` takes by name, from all fields but the buffers and the warm-up."""
    bounds, device, program, run, trace = (
        table.table(key, keys, _CONDITIONS if key == "recorded" else frozenset())
        for key, keys in _HEADER.items()
    )

    def condition(name: str) -> int:
        return run.integer(name) if name in run.fields else 0

    table.text("producer")
    return {
        "lower_bound": bounds.integer("lower_bound"),
        "proved_optimal": bounds.flag("proved_optimal"),
        "provenance": Provenance(
            table.text("method"),
            table.integer("seed"),
            device=device.text("type"),
            source=trace.build(Source),
            program=program.build(Program),
            recorded=RunStats(
                run.integer("peak_rss_bytes"),
                run.integer("milli_faults_per_step") / 1e3,
                run.integer("step_nanoseconds") / 1e9,
                condition("cpu_nanoseconds") / 1e9,
                condition("steps"),
                condition("milli_load") / 1e3,
            ),
            recorded_device=DeviceRun(**{name: condition(name) for name in _DEVICE}),
        ),
        "stated": Stated(table.integer("peak"), trace.text("fingerprint")),
    }


def _check_schema(value: object, name: str) -> None:
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema == "memplan.trace":
        raise FormatError(
            name,
            "a recorded trace, not a plan",
            f"run memplan solve {shlex.quote(name)}",
        )
    if not isinstance(value, dict) or schema != SCHEMA:
        found = "has no schema" if schema is None else f"has the schema {shown(schema)}"
        raise FormatError(name, f"not a plan: it {found}", f"name a {SCHEMA} file")
    check_version(name, value, VERSION, "plan", REMEDY)


def _check_sum(table: Table, data: bytes) -> None:
    stated = table.text("checksum")
    found, rest = split_checksum(data)
    if found != stated:
        raise table.error("checksum", "does not stand on a line of its own")
    if hashlib.sha256(rest).hexdigest() != stated:
        raise table.error(
            "checksum", "does not match: the file was damaged or edited since written"
        )


def _optional(table: Table, key: str) -> int:
    """A positive integer; 0 where there is none."""
    return table.integer(key, 1) if key in table.fields else 0


def _warmup(table: Table) -> Warmup | None:
    if table.fields["warmup"] is None:
        return None
    inner = table.table("warmup", _PLACEMENT | {"ticks"})
    return Warmup(*_replayable(inner), inner.integer("ticks"))


def _recompute(table: Table) -> Recomputation | None:
    if "recompute" not in table.fields:
        return None
    return recomputation_from(table.table("recompute", KEYS))


def _kinds(table: Table) -> tuple[StepKind, ...]:
    kinds = []
    for i, value in enumerate(table.rows("kinds") if "kinds" in table.fields else ()):
        keys = _PLACEMENT | {"seen"}
        inner = table.inside(value, f"kinds[{i}]", keys)
        kinds.append(StepKind(*_replayable(inner), inner.integer("seen", 1)))
    return tuple(kinds)


def _replayable(table: Table) -> tuple[Problem, Int64Array, Requests]:
    """The fields of a placement on a linear clock that must have requests."""
    placed = placement(table, None)
    if placed.requests is None:
        raise table.error("starts", "is null, and must be a list")
    return placed.problem, placed.offsets, placed.requests
