"""An integer program's file, in the free MPS form that CBC and HiGHS read.

Written line by line, without a modelling language between: that took longer for some
ten thousand pairs than a solver is often given.

Rows of buffer i and of pair k, (i, j), where M is the most units there may be:

    t<i>: x<i> - u <= padding not needed on top - size of i
    a<k>: x<i> - x<j> - M z<i>_<j> <= - size of i
    b<k>: x<j> - x<i> + M z<i>_<j> <= M - size of j

A settled pair has the first alone, without z. Fixed offsets are numbers in place of x.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from memplan.arrays import Int64Array
from memplan.files import write_bytes
from memplan.solving.model import Model

_AT_ONCE = 20_000  # lines between looks at the clock


def write_mps(model: Model, path: Path, deadline: float) -> list[str] | None:
    """Write `model` to `path`; the names of its variables, in the order of the file.

    deadline: by `time.perf_counter`; None is returned, and nothing written, if the file
    is not done by then.
    """
    lines, text = _lines(model), []
    while chunk := list(islice(lines, _AT_ONCE)):
        if time.perf_counter() >= deadline:
            return None
        text.append("\n".join(chunk))
    write_bytes(path, ("\n".join(text) + "\n").encode("ascii"))
    free = np.flatnonzero(model.fixed < 0).tolist()
    return ["u", *(f"x{i}" for i in free), *_choices(model)]


def tops(model: Model) -> list[float]:
    """Units of each buffer that count for the peak: its size without the padding."""
    units: list[float] = (model.size - model.slack / model.unit).tolist()
    return units


def _choices(model: Model) -> list[str]:
    """The names of the variables that say which of two buffers lies above."""
    rows = np.flatnonzero(~model.settled)
    pairs = zip(model.first[rows].tolist(), model.second[rows].tolist(), strict=True)
    return [f"z{i}_{j}" for i, j in pairs]


def _lines(model: Model) -> Iterator[str]:
    n, m = len(model.size), len(model.first)
    open_ = np.flatnonzero(~model.settled).tolist()
    yield from ("NAME memplan FREE", "ROWS", " N peak")
    yield from (f" L t{i}" for i in range(n))
    yield from (f" L a{k}" for k in range(m))
    yield from (f" L b{k}" for k in open_)
    yield "COLUMNS"
    yield " u peak 1"
    yield from (f" u t{i} -1" for i in range(n))
    yield from _offset_columns(model)
    yield " M1 'MARKER' 'INTORG'"
    most, choices = model.most, _choices(model)
    for k, name in zip(open_, choices, strict=True):
        yield f" {name} a{k} {-most} b{k} {most}"
    yield " M2 'MARKER' 'INTEND'"
    yield "RHS"
    yield from _right_hand_sides(model)
    yield "BOUNDS"
    yield f" LO limits u {model.floor / model.unit!r}"
    yield f" UP limits u {model.ceiling / model.unit!r}"
    yield from _offset_limits(model)
    yield from (f" BV limits {name}" for name in choices)
    yield "ENDATA"


def _offset_columns(model: Model) -> Iterator[str]:
    """For every free buffer, the rows that its offset stands in, and how often."""
    pairs = np.arange(len(model.first))
    open_ = pairs[~model.settled]
    owner = np.concatenate([model.first, model.second, model.second, model.first])
    keep = np.concatenate([np.ones(2 * len(pairs), bool), np.tile(~model.settled, 2)])
    order = np.argsort(owner[keep], kind="stable")
    row = np.concatenate([pairs, pairs, open_, open_])[order].tolist()
    signs = (("a", 1), ("a", -1), ("b", 1), ("b", -1))
    counts = (len(pairs), len(pairs), len(open_), len(open_))
    which = np.repeat(np.arange(4), counts)[order].tolist()
    ends = np.searchsorted(owner[keep][order], np.arange(len(model.size) + 1)).tolist()
    integers = model.step is not None
    if integers:
        yield " M3 'MARKER' 'INTORG'"
    for i, fixed in enumerate(model.fixed.tolist()):
        if fixed >= 0:
            continue
        step = 1 if model.step is None else int(model.step[i])
        yield f" x{i} t{i} {step}"
        for at in range(ends[i], ends[i + 1]):
            letter, sign = signs[which[at]]
            yield f" x{i} {letter}{row[at]} {sign * step}"
    if integers:
        yield " M4 'MARKER' 'INTEND'"


def _offset_limits(model: Model) -> Iterator[str]:
    highest = (model.ceiling + model.slack) // model.unit - model.size
    if model.step is not None:
        highest = highest // model.step
    for i in np.flatnonzero(model.fixed < 0).tolist():
        # The lower limit is said, too: a negative upper one would change it.
        yield f" LO limits x{i} 0"
        yield f" UP limits x{i} {highest[i]}"


def _right_hand_sides(model: Model) -> Iterator[str]:
    given = np.maximum(model.fixed, 0)
    for i, (top, fixed) in enumerate(zip(tops(model), given.tolist(), strict=True)):
        yield f" limits t{i} {-top - fixed!r}"
    below = _below(model, model.first, model.second)
    yield from (f" limits a{k} {value}" for k, value in enumerate(below.tolist()))
    rows = np.flatnonzero(~model.settled)
    above = model.most + _below(model, model.second[rows], model.first[rows])
    values = zip(rows.tolist(), above.tolist(), strict=True)
    yield from (f" limits b{k} {value}" for k, value in values)


def _below(model: Model, lower: Int64Array, upper: Int64Array) -> Int64Array:
    """What is left of x[lower] + size[lower] - x[upper] <= 0 on the right."""
    given = np.maximum(model.fixed, 0)
    right: Int64Array = given[upper] - given[lower] - model.size[lower]
    return right
