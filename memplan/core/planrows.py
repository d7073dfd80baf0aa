"""The buffers of a plan file, as JSON rows or columns, and the checks on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.plan import Placement, Plan, Requests, StepKind, Warmup
from memplan.core.problem import FREE, Gaps, Problem
from memplan.errors import FormatError, InputError
from memplan.formats.strictjson import shown
from memplan.formats.table import Table, is_text
from memplan.limits import MAX_INTEGER, MAX_LANES, MAX_TEXT, MAX_TOTAL_BYTES

REMEDY = "solve the trace again: memplan solve"
_ROW = frozenset({"id", "lower", "offset", "size", "upper"})
_OPTIONAL = frozenset({"fixed", "gaps"})  # in all rows of a placement, or in none
_UNPLANNED_ROW = frozenset({"id", "size"})
_CHECKSUM = re.compile(rb'^"checksum": "([0-9a-f]{64})",\n', re.MULTILINE)

# The columns of a placement's buffers: integers; texts or lists of lists of integers.
Buffers: TypeAlias = "Mapping[str, Int64Array | list[Any]]"
# Of all buffers read: integers by the field's name, shape (n,) each; their ids,
# integers or texts; and their gaps, a list for each, or none at all.
Columns: TypeAlias = (
    "tuple[dict[str, Int64Array], Int64Array | list[Any], list[object]]"
)

encode = json.JSONEncoder(sort_keys=True).encode


def as_object(fields: Mapping[str, str]) -> str:
    """JSON text of an object, one field a line, keys sorted; `fields` as JSON."""
    lines = ",\n".join(f'"{key}": {fields[key]}' for key in sorted(fields))
    return f"{{\n{lines}\n}}"


def split_checksum(data: bytes) -> tuple[str, bytes]:
    """The checksum on its line, "" if there is none, and the text without that line."""
    line = _CHECKSUM.search(data)
    if line is None:
        return "", data
    return line[1].decode(), data[: line.start()] + data[line.end() :]


def placement_fields(placed: Placement) -> tuple[dict[str, str], Buffers]:
    """The fields that all placements have in common, as JSON, and the buffers."""
    problem, requests = placed.problem, placed.requests
    buffers: dict[str, Int64Array | list[Any]] = {
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
        "unplanned": as_rows(unplanned),
    }
    return fields, buffers


def as_rows(columns: Buffers) -> str:
    keys = sorted(columns)
    row = "{" + ", ".join(f'"{key}": %s' for key in keys) + "}"
    values = zip(*(_as_json(key, columns[key]) for key in keys), strict=True)
    text = ",\n".join(map(row.__mod__, values))
    return f"[\n{text}\n]" if text else "[]"


def _as_json(key: str, column: Int64Array | list[Any]) -> Iterable[object]:
    """The values of a column, to be written as they print."""
    if isinstance(column, list):
        return map(encode, column) if key == "id" else column
    values: list[object] = column.tolist()
    if key == "fixed":
        return ["null" if value == FREE else value for value in values]
    return values


def placement(
    table: Table, length: int | None, columns: Columns | None = None
) -> Placement:
    """The buffers, their offsets, and the requests where a program was recorded.

    columns: the buffers, where the table has no rows of them.
    """
    uniform = table.fields["alignment"] is not None
    arrays, ids, rows = _from_rows(table, uniform) if columns is None else columns
    if uniform:
        arrays["alignment"] = np.full(len(ids), table.integer("alignment", 1))
    offsets = arrays.pop("offset")
    requests = labels = None
    if table.fields["starts"] is not None:
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        requests = _requests(table, listed, arrays["size"])
        names = requests.by_buffer()
        if not np.array_equal(names, np.arange(len(names))):
            labels = [str(i) for i in names.tolist()]
    elif table.rows("unplanned"):
        raise table.error("unplanned", "holds requests, but starts is null")
    else:
        labels = _labels(table, ids)
    # What serves requests is handed out in whole blocks of the alignment.
    rounding = 1
    if requests is not None and (arrays["alignment"] > 0).all():
        rounding = int(np.gcd.reduce(arrays["alignment"])) or 1
    gaps = _gaps(table, rows, list(ids)) if rows else None
    try:
        problem = Problem.of(
            **arrays, length=length, labels=labels, gaps=gaps, rounding=rounding
        )
    except InputError as error:
        raise table.error("buffers", f"do not make a problem: {error}") from None
    return Placement(problem, offsets, requests)


def _from_rows(table: Table, uniform: bool) -> Columns:
    rows = table.rows("buffers")
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    pinned = "fixed" in first
    keys = _ROW | _OPTIONAL.intersection(first) | set(["alignment"][uniform:])
    columns = table.columns("buffers", keys)
    ids = columns.pop("id")
    gaps = columns.pop("gaps", [])
    free = [value is None for value in columns.get("fixed", ())]
    if pinned:
        columns["fixed"] = [0 if f is None else f for f in columns["fixed"]]
    arrays = {
        key: table.integers(values, _place("buffers", key, ids))
        for key, values in columns.items()
    }
    if pinned:
        arrays["fixed"][free] = FREE
    return arrays, ids, gaps


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


def _labels(table: Table, ids: Int64Array | list[Any]) -> list[str] | None:
    """The ids, if they are text; None if they count from 0, as rows do."""
    if isinstance(ids, np.ndarray):
        if np.array_equal(ids, np.arange(len(ids))):
            return None
        ids = ids.tolist()
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


def check_structure(plan: Plan, path: object, remedy: str = "") -> None:
    """Raise FormatError naming what in `plan` does not fit together.

    Offsets and labels must belong to the buffers, requests must serve each buffer
    once and in the order of the clock, and a warm-up must lie before the hot steps.
    """
    problem = _misfit(plan.hot)
    if not problem and plan.warmup is not None:
        before = plan.warmup
        problem = _misfit(before)
        problem = f"warm-up: {problem}" if problem else _warmup_misfit(plan, before)
    for number, kind in enumerate(plan.kinds):
        problem = problem or _kind_misfit(kind, number)
    if not problem and plan.elastic and plan.hot.requests is None:
        problem = "an elastic plan must list its requests"
    if not problem and plan.lifespan_bytes:
        problem = _lifespan_misfit(plan)
    if not problem and plan.lanes:
        problem = _lanes_misfit(plan)
    if problem:
        raise FormatError(path, problem, remedy)


def _lifespan_misfit(plan: Plan) -> str:
    if plan.provenance.device != "cuda":
        return "lifespan_bytes is of CUDA memory, and this plan is not"
    if plan.hot.requests is None:
        return "a plan with lifespan_bytes must list its requests"
    return ""


def _lanes_misfit(plan: Plan) -> str:
    if not 0 < plan.lanes <= MAX_LANES:
        return f"lanes is {plan.lanes}, and must be 1 to {MAX_LANES}"
    if plan.hot.requests is None:
        return "a plan with lanes must list its requests"
    return "" if plan.warmup is None else "a plan with lanes has no warm-up"


def _misfit(placed: Placement) -> str:
    problem, offsets = placed.problem, placed.offsets
    if len(offsets) != len(problem):
        return f"{len(offsets)} offsets for {len(problem)} buffers"
    outside = (offsets < 0) | (offsets > MAX_TOTAL_BYTES - problem.size)
    if outside.any():
        i = int(np.argmax(outside))
        name, offset = problem.label(i), int(offsets[i])
        return f"buffer {name}: offset {offset} does not lie between 0 and 2^62 bytes"
    if placed.requests is not None:
        return _requests_misfit(problem, placed.requests)
    return "" if problem.labels is None else _labels_misfit(problem.labels)


def _labels_misfit(labels: tuple[str, ...]) -> str:
    if (
        {str}.issuperset(map(type, labels))
        and len(set(labels)) == len(labels)
        and max(map(len, labels), default=0) <= MAX_TEXT
        and "".join(labels).isascii()
    ):
        return ""  # as nearly always: a million of them one by one take a while
    seen: set[str] = set()
    for label in labels:
        if not isinstance(label, str) or not is_text(label):
            return f"label {shown(label)} is not text of at most {MAX_TEXT} characters"
        if label in seen:
            return f"two buffers have the label {shown(label)}"
        seen.add(label)
    return ""


def _requests_misfit(problem: Problem, requests: Requests) -> str:
    if problem.gaps is not None:
        # A program may read at any time what it has not freed.
        name = problem.label(int(problem.gaps.buffer[0]))
        return f"buffer {name} has gaps, which a recorded program's buffers never have"
    if len(problem) and problem.rounding != problem.granularity:
        return (
            f"buffers that serve requests take up multiples of {problem.granularity} "
            f"bytes, as their offsets are, and not of {problem.rounding}"
        )
    count, starts = len(requests), requests.starts
    if len(requests.buffer) != count:
        return f"{count} request sizes for {len(requests.buffer)} requests"
    if starts[:1] != (0,) or list(starts) != sorted(starts) or starts[-1] > count:
        return (
            f"starts must ascend from 0 to at most {count}, the number of requests, "
            f"and are {shown(', '.join(map(str, starts[:8])))}"
        )
    if (requests.size < 0).any():
        i = int(np.argmax(requests.size < 0))
        return f"request {i} asks for {int(requests.size[i])} bytes"
    return _service_misfit(problem, requests)


def _service_misfit(problem: Problem, requests: Requests) -> str:
    planned = np.flatnonzero(requests.planned)
    served, sizes = requests.buffer[planned], requests.size[planned]
    if not np.array_equal(np.sort(served), np.arange(len(problem))):
        return f"the {len(problem)} buffers do not serve one request each"
    other = sizes != problem.size[served]
    if other.any():
        i = int(np.argmax(other))
        asked, held = int(sizes[i]), int(problem.size[served[i]])
        return f"request {planned[i]} asks for {asked} bytes, its buffer holds {held}"
    # Where the clock does not tell two requests apart, their rows do.
    back = np.lexsort((served, problem.lower[served])) != np.arange(len(served))
    if back.any():
        return f"request {planned[np.argmax(back)]} is out of the order of the clock"
    return ""


def _kind_misfit(kind: StepKind, number: int) -> str:
    problem = _misfit(kind)
    if not problem and kind.problem.length is not None:
        problem = "its clock must be linear, and has a length"
    if not problem and kind.requests.starts != (0,):
        problem = "it must be one step, and has more starts than one"
    return f"kind {number}: {problem}" if problem else ""


def _warmup_misfit(plan: Plan, warmup: Warmup) -> str:
    hot, before, ticks = plan.problem, warmup.problem, warmup.ticks
    if before.length is not None:
        return "warm-up: its clock must be linear, and has a length"
    late = before.lower >= ticks
    if late.any():
        i = int(np.argmax(late))
        name, lower = before.label(i), int(before.lower[i])
        return f"warm-up: buffer {name}: lower {lower} is not before ticks {ticks}"
    # Python's integers: the sum must not wrap around before it is compared.
    end = ticks + (hot.length or 0) + int(hot.upper.max(initial=0))
    if ticks < 0 or end > MAX_INTEGER:
        return f"warm-up: ticks {ticks} is negative, or too large for the clock"
    return ""
