"""What best fit costs, and how close it comes to the lower bound.

One row per problem: traces of other projects where they are found, and synthetic ones.
`fit` is the placement alone, from a checked Problem in memory; `all` starts from plain
arrays and includes the checks and the lower bound. `grown` is how far the process's
resident set rises above where it stood, at its highest, during one `fit`.

Synthetic problems are easier than real ones: read their times, not their quality.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.solving.bestfit import best_fit
from memplan.solving.methods import solve_problem
from memplan.trace.importers.minimalloc import read_minimalloc

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = "problem            n    lower bound  peak/bound"
TIMES = "fit ms:   min   median      max  all ms  grown MB"


def synthetic(n: int, seed: int = 1) -> Problem:
    """n buffers on a clock that counts every allocation and every free.

    Lifetimes and sizes are log-normal, and a twentieth of the buffers live long.
    """
    rng = np.random.default_rng(seed)
    start = rng.random(n) * n
    lifetime = rng.lognormal(4, 1.5, n) * np.where(rng.random(n) < 0.05, 20, 1)
    ticks = np.empty(2 * n, dtype=np.int64)
    ticks[np.argsort(np.concatenate([start, start + lifetime]))] = np.arange(2 * n)
    size = np.ceil(rng.lognormal(9, 3, n).clip(max=1 << 30) / 512).astype(np.int64)
    return Problem.of(ticks[:n], ticks[n:], size * 512)


def problems(folder: Path, sizes: list[int]) -> Iterator[tuple[str, Problem]]:
    """Names and problems: those of the traces, by file size, then the synthetic."""
    paths = sorted(folder.glob("*/*.csv"), key=lambda path: path.stat().st_size)
    if not paths:
        print(f"no traces in {folder}: synthetic problems only")
    for path in paths:
        yield path.stem.split(".")[0], read_minimalloc(path)
    for n in sizes:
        yield f"synthetic {n // 1000}k", synthetic(n)


def milliseconds(run: Callable[[], object], repeats: int) -> list[float]:
    """Ascending times of `repeats` runs, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)


def grown_megabytes(run: Callable[[], object]) -> float:
    """How far the resident set rises during a run; nan where the kernel won't say."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # or what earlier runs freed would be reused
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = _status("VmRSS")
        run()
        return (_status("VmHWM") - before) / 1024
    except OSError:
        return float("nan")


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) if match else 0


def row(name: str, problem: Problem, repeats: int) -> tuple[str, float]:
    """A line of the table, and the ratio of peak to lower bound."""
    grown = grown_megabytes(lambda: best_fit(problem))
    plan = solve_problem(problem, "bestfit")
    if len(problem) <= 100_000 and verify(plan):
        raise SystemExit(f"{name}: the plan does not verify")
    arrays = (problem.lower.copy(), problem.upper.copy(), problem.size.copy())
    fit = milliseconds(lambda: best_fit(problem), repeats)
    whole = milliseconds(lambda: solve_problem(Problem.of(*arrays), "bestfit"), repeats)
    ratio = plan.peak / plan.lower_bound
    line = (
        f"{name:<15} {len(problem):>7,} {plan.lower_bound:>13,} {ratio:>11.5f}"
        f"        {fit[0]:>7.2f} {statistics.median(fit):>8.2f} {fit[-1]:>8.2f}"
        f" {statistics.median(whole):>7.1f} {grown:>9.1f}"
    )
    return line, ratio


def main() -> None:
    """Print the table, and the geometric mean over MiniMalloc's six."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT.parent / "shared" / "traces"
    parser.add_argument("--traces", type=Path, default=default, metavar="DIR")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="no million, 5 repeats")
    options = parser.parse_args()
    sizes = [10_000, 100_000] if options.quick else [10_000, 100_000, 1_000_000]
    repeats = 5 if options.quick else max(5, options.repeats)

    print(f"{COLUMNS}  {TIMES}")
    ratios = {}
    for name, problem in problems(options.traces, sizes):
        line, ratios[name] = row(name, problem, repeats)
        print(line, flush=True)
    six = [ratios[name] for name in "ABCDEF" if name in ratios]
    if len(six) == 6:
        mean = statistics.geometric_mean(six)
        print(f"geometric mean of peak/bound, A to F: {mean:.4f}")


if __name__ == "__main__":
    main()
