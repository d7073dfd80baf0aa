"""The buffers of a plan file, as rows of JSON or as columns, and their requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.gaps import Gaps
from memplan.core.placement import Placement, Requests
from memplan.core.problem import FREE, Problem
from memplan.errors import InputError
from memplan.formats.strictjson import shown
from memplan.formats.table import Table

_ROW = frozenset({"id", "lower", "offset", "size", "upper"})
_OPTIONAL = frozenset({"fixed", "gaps"})  # in all rows of a placement, or in none
_UNPLANNED_ROW = frozenset({"id", "size"})

# Of all buffers: integers by the field's name, shape (n,) each; their ids, integers or
# texts; and their gaps, a list for each, or none at all.
Columns: TypeAlias = (
    "tuple[dict[str, Int64Array], Int64Array | list[Any], list[object]]"
)


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
