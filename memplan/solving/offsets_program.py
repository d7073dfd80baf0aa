"""Integer programs of offsets, solved by CBC or HiGHS.

`write_mps` writes the program in the free MPS form that both solvers read. Building it
with PuLP takes 5 to 19 times as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.errors import EnvironmentUnfitError, as_options
from memplan.files import write_bytes
from memplan.scratch import scratch_folder
from memplan.solving import cbc
from memplan.solving.options import Options

_GRACE_SECONDS = 1.0  # for HiGHS to end after it was told to
_GRAIN_GAP = 0.999  # peaks are whole numbers of grains: a smaller gap is none
_LEAST_GAP = 1e-6  # units; solvers cannot tell less
_AT_ONCE = 20_000  # lines of a model between looks at the clock


@dataclass(frozen=True, eq=False)
class Model:
    """n buffers and m pairs that are alive at the same time.

    size, fixed: in units, int64, shape (n,); fixed is -1 where a buffer is free.
    slack: bytes of padding in each size, int64, shape (n,): they do not raise the peak.
    step: x must be a multiple of it, in units, int64, shape (n,); None for 1.
    first, second: the buffers of each pair, int64, shape (m,), first < second.
    settled: pairs whose first lies below the second, without loss; bool, shape (m,).
    floor, ceiling: the least peak is looked for between them, in bytes, both included.
    unit: bytes. grain: bytes that all peaks are multiples of, a divisor of the unit.
    start: offsets to begin with, in units, that keep to all of that; or None.
    """

    size: Int64Array
    slack: Int64Array
    step: Int64Array | None
    fixed: Int64Array
    first: Int64Array
    second: Int64Array
    settled: BoolArray
    floor: int
    ceiling: int
    unit: int
    grain: int
    start: Int64Array | None

    @property
    def most(self) -> int:
        """Units that no padded size ends above, if the peak is within the ceiling."""
        return int((self.ceiling + self.slack).max(initial=0)) // self.unit


@dataclass(frozen=True, eq=False)
class Found:
    """What a solver said, and how it ended.

    offsets: in units, inexact, shape (n,); None without a solution.
    bound: on the peak, in units; None if it proved nothing.
    infeasible: there is no packing at or below the ceiling.
    """

    status: str
    offsets: Float64Array | None = None
    bound: float | None = None
    infeasible: bool = False


def run(model: Model, options: Options) -> Found:
    """Solve `model` with `options.mip_solver`, within the time limit.

    Writing the model counts against the limit, and so does loading the solver.

    Raises EnvironmentUnfitError if the solver is not installed, or fails.
    """
    limit = options.time_limit
    deadline = math.inf if limit is None else time.perf_counter() + limit
    solve = _highs if options.mip_solver == "highs" else _cbc
    with scratch_folder() as folder:
        names = write_mps(model, folder / cbc.MODEL, deadline)
        if names is None:
            return Found("no time was left to write the model")
        return solve(_Task(model, options, folder, names, deadline))


@dataclass(frozen=True, eq=False)
class _Task:
    """A model that was written to a folder, and until when to solve it."""

    model: Model
    options: Options
    folder: Path
    names: list[str]
    deadline: float

    @property
    def seconds(self) -> float:
        """What is left."""
        return cbc.seconds_left(self.deadline)

    @property
    def gap(self) -> float:
        """Units: two peaks that differ by less are the same."""
        return max(_GRAIN_GAP * self.model.grain / self.model.unit, _LEAST_GAP)


def _start_values(model: Model, names: list[str]) -> list[float] | None:
    """The known packing as values of the variables; None if there is none."""
    if model.start is None:
        return None
    x: list[float] = model.start.tolist()
    step = [1] * len(x) if model.step is None else model.step.tolist()
    values = []
    for name in names:
        first, _, second = name[1:].partition("_")
        if name == "u":
            value = max(a + b for a, b in zip(x, tops(model), strict=True))
        elif second:
            value = int(x[int(first)] > x[int(second)])
        else:
            value = x[int(first)] // step[int(first)]
        values.append(float(value))
    return values


def _offsets_from(model: Model, values: Mapping[str, float]) -> Float64Array:
    """The solver's offsets in units; what it does not mention is 0."""
    step = np.ones(len(model.size)) if model.step is None else model.step
    found = [values.get(f"x{i}", 0.0) for i in range(len(model.size))]
    return np.where(model.fixed >= 0, model.fixed, np.array(found) * step)


def _cbc(task: _Task) -> Found:
    options = task.options
    values = _start_values(task.model, task.names)
    start = None if values is None else dict(zip(task.names, values, strict=True))
    answer = cbc.solve_mps(
        task.folder,
        task.deadline,
        gap=task.gap,
        threads=options.threads,
        seed=options.seed,
        start=start,
    )
    if answer.killed:
        return Found("killed when its time was over")
    if answer.infeasible:
        return Found("proved that nothing is lower", infeasible=True)
    found = None if answer.values is None else _offsets_from(task.model, answer.values)
    state = "solved" if answer.finished else answer.state.lower()
    return Found(state, found, answer.bound)


def _highs(task: _Task) -> Found:
    options = task.options
    try:
        highspy = import_module("highspy")
    except ImportError as error:
        text = (
            f"HiGHS cannot be loaded ({error}); pip install highspy, do not load "
            'OR-tools in the same process, or take mip_solver="cbc"'
        )
        raise EnvironmentUnfitError(text, shell=as_options(text)) from None

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_abs_gap", task.gap)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("random_seed", options.seed % 2**31)
    solver.setOptionValue("threads", options.threads or 1)
    if options.time_limit is not None:
        solver.setOptionValue("time_limit", cbc.asked_seconds(task.deadline))
    solver.HandleUserInterrupt = True
    solver.readModel(str(task.folder / cbc.MODEL))
    start = _start_values(task.model, task.names)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start
        solver.setSolution(solution)
    worker = solver.startSolve()
    try:
        while worker.is_alive() and task.seconds > 0:
            worker.join(0.05)
        if worker.is_alive():
            solver.cancelSolve()
            worker.join(_GRACE_SECONDS)
            if worker.is_alive():
                return Found("did not stop when its time was over")
    except KeyboardInterrupt:
        solver.cancelSolve()
        worker.join(_GRACE_SECONDS)
        raise
    return _read_highs(task.model, solver, task.names)


def _read_highs(model: Model, solver: Any, names: list[str]) -> Found:
    highspy = import_module("highspy")
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Found("proved that nothing is lower", infeasible=True)
    offsets = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        values = dict(zip(names, solver.getSolution().col_value, strict=True))
        offsets = _offsets_from(model, values)
    finished = status == highspy.HighsModelStatus.kOptimal
    # A model without choices to make is no integer program to HiGHS, and has no bound.
    bound = info.mip_dual_bound
    if finished and info.mip_node_count < 0:
        bound = info.objective_function_value
    text = "solved" if finished else solver.modelStatusToString(status).lower()
    return Found(text, offsets, float(bound) if np.isfinite(bound) else None)


def write_mps(model: Model, path: Path, deadline: float) -> list[str] | None:
    """Write `model` to `path`; the names of its variables, in the order of the file.

    Rows of buffer i and of pair k, (i, j), where M is the most units there may be:

        t<i>: x<i> - u <= padding not needed on top - size of i
        a<k>: x<i> - x<j> - M z<i>_<j> <= - size of i
        b<k>: x<j> - x<i> + M z<i>_<j> <= M - size of j

    A settled pair has only the first, without z. A fixed offset is a number, not x.

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
