"""Programs of binary choices with linear limits, solved by CBC."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memplan.files import write_bytes
from memplan.scratch import scratch_folder
from memplan.solving import cbc

_GAP = 1e-4  # of the cost: a smaller difference is none
_CHOSEN = 0.5


@dataclass
class Rows:
    """Limits on `count` choices: each the sum of coefficients of the chosen ones, by
    their numbers, and the most that it may be."""

    count: int
    terms: list[tuple[Mapping[int, float], float]] = field(default_factory=list)

    def add(self, coefficients: Mapping[int, float], most: float) -> None:
        """One more limit."""
        self.terms.append((coefficients, most))


@dataclass(frozen=True)
class Choice:
    """chosen: numbers, ascending; None if there is no solution, or none was found.
    proved: it is one of least cost, or it is proved that there is none. cost: of the
    choice. bound: no choice costs less; None if nothing is known."""

    chosen: tuple[int, ...] | None
    proved: bool
    cost: float = 0.0
    bound: float | None = None


def minimize(costs: Sequence[float], rows: Rows, time_limit: float) -> Choice:
    """The choice of least cost within all limits.

    costs: of each, 0 or more. time_limit: seconds. Raises EnvironmentUnfitError if CBC
    cannot be run.
    """
    if not any(most < 0 for _, most in rows.terms):
        return Choice((), proved=True, bound=0.0)
    if any(_least(terms) > most for terms, most in rows.terms):
        return Choice(None, proved=True)
    # CBC's own tolerances are absolute: costs about as large as the number of choices.
    scale = max(costs, default=0.0) / 1000 or 1.0
    deadline = time.perf_counter() + time_limit
    with scratch_folder() as folder:
        text = "\n".join(_mps([cost / scale for cost in costs], rows))
        write_bytes(folder / cbc.MODEL, f"{text}\n".encode("ascii"))
        answer = cbc.solve_mps(folder, deadline, gap=1e-6, relative_gap=_GAP)
    if answer.infeasible:
        return Choice(None, proved=True)
    if answer.values is None:
        return Choice(None, proved=False)
    chosen = tuple(
        i for i in range(rows.count) if answer.values.get(f"x{i}", 0.0) > _CHOSEN
    )
    cost = math.fsum(costs[i] for i in chosen)
    bound = None if answer.bound is None else answer.bound * scale
    return Choice(chosen, answer.finished, cost, bound)


def _least(terms: Mapping[int, float]) -> float:
    """What the sum is at the least."""
    return math.fsum(value for value in terms.values() if value < 0)


def _mps(costs: Sequence[float], rows: Rows) -> Iterator[str]:
    yield from ("NAME memplan FREE", "ROWS", " N cost")
    yield from (f" L r{k}" for k in range(len(rows.terms)))
    yield "COLUMNS"
    yield " M1 'MARKER' 'INTORG'"
    columns: list[list[str]] = [[f" x{i} cost {costs[i]!r}"] for i in range(rows.count)]
    for k, (terms, _) in enumerate(rows.terms):
        for i, value in terms.items():
            columns[i].append(f" x{i} r{k} {float(value)!r}")
    for column in columns:
        yield from column
    yield " M2 'MARKER' 'INTEND'"
    yield "RHS"
    yield from (f" limits r{k} {most!r}" for k, (_, most) in enumerate(rows.terms))
    yield "BOUNDS"
    yield from (f" BV limits x{i}" for i in range(rows.count))
    yield "ENDATA"
