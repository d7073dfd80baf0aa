"""`memplan.solve`: offsets for a trace or a problem, and recomputation for a budget."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from memplan.arrays import Int64Like
from memplan.budgeting.choose import Budgeting, Chosen
from memplan.core.plan import Plan, Source
from memplan.core.problem import Problem
from memplan.errors import UsageError
from memplan.files import PathLike
from memplan.formats.sniff import sniff
from memplan.solving.options import Options
from memplan.solving.solve import solve as solve_offsets
from memplan.text import name_as_text
from memplan.trace.read import read_input
from memplan.trace.trace import Trace


def solve(  # noqa: PLR0913 - a public verb: by name
    source: Trace | Problem | PathLike | tuple[Int64Like, Int64Like, Int64Like],
    method: str = "auto",
    *,
    budget: str | int | None = None,
    keep: Collection[str] = (),
    step: str | int = "hot",
    alignment: int | None = None,
    origin: Source | None = None,
    options: Options | None = None,
    time_limit: float | None = None,
    capacity: int | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> Plan:
    """Plan the memory of a trace's hot step, or of a bare problem.

    source: a Trace, a Problem, the path of either, or arrays (lower, upper, size).
    budget: for a trace with calls of modules: the most bytes of tensors that may be
        live, as bytes, a size ("8GiB"), a share of the recorded peak ("70%"), or "min".
        The plan then says which modules compute their activations again, and the
        offsets are those of the program that does so.
    keep: paths of modules that are not computed again.

    All else, and what it raises, is as for `memplan.solving.solve.solve`. Also raises
    InfeasibleError for a budget that is too small, UsageError for a trace that does not
    say what modules save, and InputError for a file that cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        with sniff(source) as file:
            name = name_as_text(Path(source).name)
            origin = origin or Source(name, file.sha256(), str(step))
            source = read_input(file)
    chosen: Chosen | None = None
    if budget is not None:
        if not isinstance(source, Trace):
            raise UsageError("a budget is for a recorded trace, not for a bare problem")
        budgeting = Budgeting(source, keep)
        chosen = budgeting.within(budgeting.bytes_of(budget))
        source = chosen.recorded.trace
    elif keep:
        raise UsageError("modules to keep are for a budget; give that, too")
    plan = solve_offsets(
        source,
        method,
        step=step,
        alignment=alignment,
        origin=origin,
        options=options,
        time_limit=time_limit,
        capacity=capacity,
        threads=threads,
        seed=seed,
    )
    return plan if chosen is None else replace(plan, recompute=chosen.units)
