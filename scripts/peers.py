"""Other projects' solvers of the same problem, asked through their own interfaces.

Each is imported where it is asked, and none is needed: `missing` says what one lacks
here. All take plain problems: linear clocks, one alignment for all (sizes are handed
over as multiples of it), no fixed offsets, no gaps.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.errors import NoPlanError
from memplan.solving.bestfit import best_fit
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options

THREADS = 2


@dataclass(frozen=True)
class Peer:
    """A solver: offsets in bytes, shape (n,), of a problem and a limit in seconds, or
    None if it found none.

    needs: the package, or the executable, that it is. limited: whether it heeds the
    limit. most: buffers; it is not asked about more than it was made for.
    """

    name: str
    needs: str
    ask: Callable[[Problem, float], Int64Array | None]
    limited: bool = True
    most: int = 1_000_000

    def missing(self) -> str:
        """What is not installed, or nothing."""
        if self.needs.endswith(("/minimalloc", "minimalloc")):
            return "" if shutil.which(self.needs) else f"no executable {self.needs}"
        return "" if find_spec(self.needs) else f"{self.needs} is not installed"


def peers(minimalloc: str = "minimalloc") -> list[Peer]:
    """All of them, memplan's own first. minimalloc: name or path of its executable."""
    ours = [
        Peer("memplan skyline", "memplan", partial(_memplan, "skyline"), limited=False),
        Peer("memplan auto", "memplan", partial(_memplan, "auto")),
        Peer("memplan ejection", "memplan", partial(_memplan, "ejection")),
    ]
    omni = [
        Peer(f"OmniMalloc {name}", "omnimalloc", partial(omnimalloc, allocator), timed)
        for name, allocator, timed in (
            ("greedy by all", "GreedyByAllAllocator", False),
            ("SuperMalloc", "SupermallocAllocator", True),
            ("Tabu", "TabuSearchAllocator", True),
            ("annealing", "SimulatedAnnealingAllocator", True),
            ("TelaMalloc", "TelamallocAllocator", True),
        )
    ]
    return [
        *ours,
        *omni,
        Peer("ExecuTorch greedy", "executorch", executorch, limited=False),
        Peer("CP-SAT", "ortools", cp_sat, most=2000),
        Peer("HiGHS", "highspy", partial(_memplan, "mip"), most=300),
        Peer("MiniMalloc", minimalloc, partial(run_minimalloc, minimalloc), most=2000),
    ]


def _memplan(method: str, problem: Problem, seconds: float) -> Int64Array | None:
    options = Options(seconds, threads=THREADS, mip_solver="highs")
    try:
        return solve_problem(problem, method, options).offsets
    except NoPlanError:
        return None


def omnimalloc(allocator: str, problem: Problem, seconds: float) -> Int64Array:
    """One of OmniMalloc's allocators, by its class; it has limits of its own, in
    iterations, which are lifted where there is one in seconds."""
    import omnimalloc
    from omnimalloc import allocators

    omnimalloc.set_max_threads(THREADS)
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


def executorch(problem: Problem, seconds: float) -> Int64Array:
    """ExecuTorch's default for the memory of a program's activations."""
    import torch
    from executorch.exir.memory_planning import greedy
    from executorch.exir.tensor import TensorSpec

    specs = []
    for lower, upper, size in zip(*_columns(problem), strict=True):
        spec = TensorSpec(torch.uint8, torch.Size([size]))
        spec.lifetime = [lower, upper - 1]  # both ends are alive
        specs.append(spec)
    unit = problem.granularity
    planned = greedy(unit, dict.fromkeys(specs), torch.nn.Module(), None, 0)
    places = [planned.spec_dict[spec].mem_offset for spec in specs]
    return np.array(places, dtype=np.int64)


def cp_sat(problem: Problem, seconds: float) -> Int64Array | None:
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
    solver.parameters.num_workers = THREADS
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([solver.value(x) * unit for x in offsets], dtype=np.int64)


def run_minimalloc(
    executable: str, problem: Problem, seconds: float
) -> Int64Array | None:
    """Google's MiniMalloc, which answers whether a capacity is enough: asked for the
    lower bound first, then, for halves of the time left, about half-way to best fit."""
    begin = time.perf_counter()
    unit, low = problem.granularity, lower_bound(problem)
    high = problem.peak(best_fit(problem))
    best, capacity = None, low
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with asked.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["id", "lower", "upper", "size"])
            rows.writerows(_rows(problem))
        while low <= high:
            left = seconds - (time.perf_counter() - begin)
            if left < seconds / 50:
                break
            answer.unlink(missing_ok=True)
            command = [executable, f"--capacity={capacity}"]
            command += [f"--input={asked}", f"--output={answer}"]
            limit = [f"--timeout={left / 2:.3f}s"]
            ran = subprocess.run(
                command + limit, capture_output=True, text=True, check=False
            )
            found = _offsets_in(answer, len(problem)) if answer.exists() else None
            if found is None:
                if ran.returncode < 0 or re.search("unknown", ran.stderr, re.I):
                    raise RuntimeError(f"{executable}: {ran.stderr.strip()}")
                low = capacity + unit
            else:
                best, high = found, problem.peak(found) - unit
            capacity = (low + high) // 2 // unit * unit
    return best


def _rows(problem: Problem) -> list[tuple[int, int, int, int]]:
    """Rows (number, lower, upper, padded size)."""
    rows = zip(*_columns(problem), strict=True)
    return [(i, lower, upper, size) for i, (lower, upper, size) in enumerate(rows)]


def _offsets_in(path: Path, n: int) -> Int64Array | None:
    offsets = np.full(n, -1, dtype=np.int64)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            offsets[int(row["id"])] = int(row["offset"])
    return offsets if (offsets >= 0).all() else None


def _columns(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """Ends of lifespans, and sizes as multiples of the alignment."""
    return problem.lower.tolist(), problem.upper.tolist(), problem.padded.tolist()
