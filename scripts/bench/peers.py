"""Other projects' solvers of the same problem, asked through their own interfaces.

Each is imported where it is asked, and none is needed: `missing` says what one lacks
here. All take plain problems: linear clocks, one alignment for all (sizes are handed
over as multiples of it), no fixed offsets, no gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.errors import NoPlanError
from memplan.solving.bestfit import best_fit
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options


@dataclass(frozen=True)
class Peer:
    """A solver: offsets in bytes, shape (n,), of a problem and a limit in seconds, or
    None if it found none.

    needs: the package that it is. most: buffers; it is not asked
    about larger problems. circular: whether it takes lifespans that wrap around the end
    of a step.
    """

    name: str
    needs: str
    ask: Callable[[Problem, float], Int64Array | None]
    most: int = 1_000_000
    circular: bool = False

    def missing(self) -> str:
        """What is not installed, or nothing."""
        return "" if find_spec(self.needs) else f"{self.needs} is not installed"


def peers(threads: int) -> list[Peer]:
    """All of them, memplan's own first."""
    ours = [
        Peer(
            f"memplan {method}",
            "memplan",
            partial(_memplan, method, threads),
            circular=True,
        )
        for method in ("auto", "bestfit", "search", "ejection")
    ]
    omni = [
        Peer(f"OmniMalloc {name}", "omnimalloc", partial(omnimalloc, kind, threads))
        for name, kind in (
            ("greedy by all", "GreedyByAllAllocator"),
            ("SuperMalloc", "SupermallocAllocator"),
            ("Tabu", "TabuSearchAllocator"),
            ("annealing", "SimulatedAnnealingAllocator"),
            ("TelaMalloc", "TelamallocAllocator"),
        )
    ]
    return [
        *ours,
        *omni,
        Peer("CP-SAT", "ortools", partial(cp_sat, threads), most=2000),
    ]


def _memplan(
    method: str, threads: int, problem: Problem, seconds: float
) -> Int64Array | None:
    try:
        return solve_problem(problem, method, Options(seconds, threads=threads)).offsets
    except NoPlanError:
        return None


def omnimalloc(
    allocator: str, threads: int, problem: Problem, seconds: float
) -> Int64Array:
    """One of OmniMalloc's allocators, by its class; it has limits of its own, in
    iterations, which are lifted where there is one in seconds."""
    import omnimalloc
    from omnimalloc import allocators

    omnimalloc.set_max_threads(threads)
    kind = getattr(allocators, allocator)
    given: dict[str, float] = {}
    for name in ("max_iterations", "max_backtracks"):
        if name in kind.__init__.__code__.co_varnames:
            given[name] = (1 << 31) - 1
    if "timeout" in kind.__init__.__code__.co_varnames:
        given["timeout"] = seconds
    rows = zip(*_columns(problem), strict=True)
    asked = tuple(
        omnimalloc.Allocation(id=i, size=size, start=lower, end=upper)
        for i, (lower, upper, size) in enumerate(rows)
    )
    offsets = np.zeros(len(problem), dtype=np.int64)
    for placed in omnimalloc.allocate(asked, allocator=kind(**given)):
        offsets[placed.id] = placed.offset
    return offsets


def cp_sat(threads: int, problem: Problem, seconds: float) -> Int64Array | None:
    """OR-tools: rectangles that do not overlap, and the bytes as a resource; told how
    high best fit is, and asked for the lowest."""
    from ortools.sat.python import cp_model

    unit = int(np.gcd.reduce(problem.padded))
    roof = problem.peak(best_fit(problem)) // unit
    model = cp_model.CpModel()
    peak = model.new_int_var(lower_bound(problem) // unit, roof, "peak")
    offsets, times, heights, sizes = [], [], [], []
    for i, lower, upper, padded in _rows(problem):
        size = padded // unit
        offset = model.new_int_var(0, roof - size, f"x{i}")
        model.add(offset + size <= peak)
        times.append(model.new_fixed_size_interval_var(lower, upper - lower, f"t{i}"))
        heights.append(model.new_fixed_size_interval_var(offset, size, f"b{i}"))
        offsets.append(offset)
        sizes.append(size)
    model.add_no_overlap_2d(times, heights)
    model.add_cumulative(times, sizes, peak)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([solver.value(x) * unit for x in offsets], dtype=np.int64)


def _rows(problem: Problem) -> list[tuple[int, int, int, int]]:
    """Rows (number, lower, upper, padded size)."""
    rows = zip(*_columns(problem), strict=True)
    return [(i, lower, upper, size) for i, (lower, upper, size) in enumerate(rows)]


def _columns(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """Ends of lifespans, and sizes as multiples of the alignment."""
    return problem.lower.tolist(), problem.upper.tolist(), problem.padded.tolist()
