"""Reading plan files: nothing in them is believed before it is checked."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from dataclasses import fields
from typing import Any

from memplan.arrays import Int64Array
from memplan.core.placement import Requests, StepKind, Warmup
from memplan.core.plan import (
    DeviceRun,
    Plan,
    Program,
    Provenance,
    RunStats,
    Source,
    Stated,
)
from memplan.core.plancheck import check_structure
from memplan.core.planrows import Columns, placement
from memplan.core.problem import Problem
from memplan.errors import FormatError
from memplan.formats.sniff import Input, Kind, begins_as, opened
from memplan.formats.strictjson import parse, shown
from memplan.formats.table import Table, check_version

SCHEMA = "memplan.plan"
VERSION = 1
MAX_PLAN_BYTES = 128 << 20  # more than a million buffers

_REMEDY = "make the plan anew with memplan solve"
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
_EXTRA = frozenset({"elastic", "kinds", "lanes", "lifespan_bytes"})
_DEVICE = frozenset(each.name for each in fields(DeviceRun))
# Of `recorded`.
_CONDITIONS = _DEVICE | {"cpu_nanoseconds", "milli_load", "steps"}
_CHECKSUM = re.compile(rb'^"checksum": "([0-9a-f]{64})",\n', re.MULTILINE)
# What is no plan by its first bytes, and the command to give it to.
_OTHERS = {
    Kind.PARQUET: ("a Parquet file, as traces are, not a plan", "memplan solve"),
    Kind.PICKLE: ("a pickle, as memory snapshots are, not a plan", "memplan solve"),
    Kind.GZIP: ("compressed with gzip", "gunzip"),
}


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
        return _plan(file.json(_REMEDY), data, name)


def load_plan(data: bytes, name: str = "plan") -> Plan:
    """The plan in `data`; `name` stands for the file in messages.

    Raises FormatError naming the field or the buffer at fault.
    """
    _refuse_others(data, name)
    return _plan(parse(data, name, _REMEDY), data, name)


def _refuse_others(data: bytes, name: str) -> None:
    """Raise FormatError for a file that cannot be a plan's, in words."""
    kind, command = _OTHERS.get(begins_as(data), ("", ""))
    if kind:
        raise FormatError(name, kind, f"run {command} {shlex.quote(name)}")
    if not data.strip():
        raise FormatError(name, "the file is empty", _REMEDY)


def _plan(
    value: object, data: bytes | None, name: str, columns: Columns | None = None
) -> Plan:
    """data: the file's bytes, whose sum is to be checked. columns: the hot buffers."""
    _check_schema(value, name)
    keys = _KEYS | _EXTRA.intersection(value if isinstance(value, dict) else ())
    table = Table.of(value, name, keys, remedy=_REMEDY)
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
        **header,
    )
    check_structure(plan, name, _REMEDY)
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
    check_version(name, value, VERSION, "plan", _REMEDY)


def _check_sum(table: Table, data: bytes) -> None:
    stated = table.text("checksum")
    line = _CHECKSUM.search(data)
    if line is None or line[1].decode() != stated:
        raise table.error("checksum", "does not stand on a line of its own")
    digest = hashlib.sha256(data[: line.start()])
    digest.update(data[line.end() :])
    if digest.hexdigest() != stated:
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
