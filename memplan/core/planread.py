"""Reading plan files: nothing in them is believed before it is checked."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.gaps import Gaps
from memplan.core.placement import Placement, Requests, StepKind, Warmup
from memplan.core.plan import (
    Plan,
    Program,
    Provenance,
    RunStats,
    Source,
    Stated,
)
from memplan.core.plancheck import check_structure
from memplan.core.problem import FREE, Problem
from memplan.errors import FormatError, InputError
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
_EXTRA = frozenset({"elastic", "kinds", "lanes"})
_ROW = frozenset({"id", "lower", "offset", "size", "upper"})
_CONDITIONS = frozenset({"cpu_nanoseconds", "milli_load", "steps"})  # of `recorded`
_OPTIONAL = frozenset({"fixed", "gaps"})  # in all rows of a placement, or in none
_UNPLANNED_ROW = frozenset({"id", "size"})
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


def _plan(value: object, data: bytes, name: str) -> Plan:
    _check_schema(value, name)
    keys = _KEYS | _EXTRA.intersection(value if isinstance(value, dict) else ())
    table = Table.of(value, name, keys, remedy=_REMEDY)
    _check_sum(table, data)
    hot = _placement(
        table,
        None if table.fields["length"] is None else table.integer("length", 1),
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
        lanes=table.integer("lanes", 1) if "lanes" in table.fields else 0,
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
    placed = _placement(table, None)
    if placed.requests is None:
        raise table.error("starts", "is null, and must be a list")
    return placed.problem, placed.offsets, placed.requests


def _placement(table: Table, length: int | None) -> Placement:
    """The buffers, their offsets, and the requests where a program was recorded."""
    rows = table.rows("buffers")
    uniform = table.fields["alignment"] is not None
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    pinned = "fixed" in first
    keys = _ROW | _OPTIONAL.intersection(first) | set(["alignment"][uniform:])
    columns = table.columns("buffers", keys)
    ids = columns.pop("id")
    gaps = _gaps(table, columns.pop("gaps", []), ids)
    free = [value is None for value in columns.get("fixed", ())]
    if pinned:
        columns["fixed"] = [0 if f is None else f for f in columns["fixed"]]
    arrays = {
        key: table.integers(values, _place("buffers", key, ids))
        for key, values in columns.items()
    }
    if pinned:
        arrays["fixed"][free] = FREE
    if uniform:
        arrays["alignment"] = np.full(len(ids), table.integer("alignment", 1))
    offsets = arrays.pop("offset")
    requests = labels = None
    if table.fields["starts"] is not None:
        requests = _requests(table, ids, arrays["size"])
        names = requests.by_buffer()
        if not np.array_equal(names, np.arange(len(names))):
            labels = [str(i) for i in names.tolist()]
    elif table.rows("unplanned"):
        raise table.error("unplanned", "holds requests, but starts is null")
    else:
        labels = _labels(table, ids)
    try:
        problem = Problem.of(**arrays, length=length, labels=labels, gaps=gaps)
    except InputError as error:
        raise table.error("buffers", f"do not make a problem: {error}") from None
    return Placement(problem, offsets, requests)


def _gaps(table: Table, rows: list[object], ids: list[object]) -> Gaps | None:
    """The gaps of all buffers: [lower, upper] each, and [begin, end] of a window."""
    place = _place("buffers", "gaps", ids)
    gaps: list[tuple[Any, ...]] = []
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise table.error(place(i), f"is {shown(row)}, and must be a list")
        for gap in row:
            if not isinstance(gap, list) or len(gap) not in (2, 4):
                problem = "holds what is not [lower, upper] or [lower, upper, begin, "
                raise table.error(place(i), f"{problem}end]")
            if gap[2:] and gap[2] == gap[3]:
                raise table.error(place(i), "has a window of no bytes: leave it out")
            gaps.append((i, *(gap if gap[2:] else [*gap, 0, 0])))
    if not gaps:
        return None
    owners, *columns = zip(*gaps, strict=True)
    arrays = [table.integers(column, lambda k: place(owners[k])) for column in columns]
    return Gaps.of(np.array(owners), *arrays)


def _requests(table: Table, ids: list[object], sizes: Int64Array) -> Requests:
    """All requests: those that buffers serve, by their ids, and the unplanned ones."""
    extra = table.columns("unplanned", _UNPLANNED_ROW)
    total = len(ids) + len(extra["id"])
    served = table.integers(ids, _place("buffers", "id"), high=total - 1)
    rest = table.integers(extra["id"], _place("unplanned", "id"), high=total - 1)
    listed = np.concatenate([served, rest])
    times = np.bincount(listed, minlength=total)
    if (times > 1).any():
        twice = int(np.argmax(times > 1))
        raise table.error("buffers", f"and unplanned list request {twice} twice")
    size = np.empty(total, dtype=np.int64)
    size[served] = sizes
    size[rest] = table.integers(extra["size"], _place("unplanned", "size", extra["id"]))
    starts = table.integers(table.rows("starts"), "starts[{}]".format)
    return Requests.serving(tuple(starts.tolist()), size, served)


def _labels(table: Table, ids: list[object]) -> list[str] | None:
    """The ids, if they are text; None if they count from 0, as rows do."""
    if ids == list(range(len(ids))) and bool not in set(map(type, ids)):
        return None
    for i, value in enumerate(ids):
        if not isinstance(value, str):
            problem = f"is {shown(value)}, and must be text, as starts is null"
            raise table.error(_place("buffers", "id")(i), problem)
    return [str(value) for value in ids]


def _place(
    key: str, field: str, ids: list[object] | None = None
) -> Callable[[int], str]:
    """How the field of row i is called in messages."""

    def name(i: int) -> str:
        return f"{key}[{i}].{field}" + (f" (id {shown(ids[i])})" if ids else "")

    return name
