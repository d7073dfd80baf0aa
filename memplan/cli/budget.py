"""What `memplan solve` says and draws of budgets."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.budgeting.choose import Budgeting, Chosen
from memplan.cli import show
from memplan.core.problem import Problem
from memplan.core.recompute import Recomputation
from memplan.errors import UsageError
from memplan.trace.trace import Trace
from memplan.units import budget_of, format_bytes, format_share

POINTS = 16  # of the curve, at most
_SHOWN = 6  # names in a list


@dataclass(frozen=True, eq=False)
class Budgeted:
    """A choice of what to compute again."""

    budgeting: Budgeting
    chosen: Chosen

    @property
    def trace(self) -> Trace:
        """As it will be."""
        return self.chosen.recorded.trace

    def entries(self) -> dict[str, Any]:
        """As JSON has it."""
        found = _entries(self.chosen.units)
        found["candidates"] = len(self.budgeting.candidates.found)
        found["excluded"] = self.budgeting.candidates.excluded
        return found

    def rows(self, others: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """For people: what is computed again, the other facts, what cannot be."""
        return [*_rows(self.chosen.units), *others, *_excluded(self.budgeting)]


def within(given: Trace | Problem, budget: str, keep: Sequence[str]) -> Budgeted:
    """The cheapest choice for `--budget`. Raises what Budgeting does."""
    budgeting = _budgeting(given, keep)
    return Budgeted(budgeting, budgeting.within(budgeting.bytes_of(budget)))


def _budgeting(given: Trace | Problem, keep: Sequence[str]) -> Budgeting:
    if isinstance(given, Problem):
        raise UsageError("--budget and --curve are for a recorded trace")
    return Budgeting(given, keep)


def _rows(part: Recomputation) -> list[tuple[str, str]]:
    """The facts of a plan that computes modules again."""
    peak, budget = format_bytes(part.predicted), format_bytes(part.budget)
    eager = format_bytes(part.eager)
    rows = [("budget", f"{budget}: {peak} of tensors expected, {eager} recorded")]
    if not part.units:
        return [*rows, ("", "nothing is computed again")]
    share = format_share(part.recomputed_milli / 1000)
    proof = ", proved least of choices without nesting" if part.proved else ""
    rows.append(("recomputed", f"{share} of the forward pass{proof}"))
    kinds = Counter(
        f"{each.kind}, in part" if each.last else each.kind for each in part.units
    )
    names = [f"{count:,} {kind}" for kind, count in kinds.most_common(_SHOWN)]
    if len(kinds) > _SHOWN:
        names.append(f"{len(kinds) - _SHOWN} more kinds")
    return [*rows, *show.listed("modules", names)]


def _excluded(budgeting: Budgeting) -> list[tuple[str, str]]:
    """Modules that cannot be computed again, by reason."""
    reasons = Counter(
        reason.rpartition(": ")[2] for reason in budgeting.candidates.excluded.values()
    )
    return [
        ("" if i else "left out", f"{count:,} module{'s' * (count > 1)}: {reason}")
        for i, (reason, count) in enumerate(reasons.most_common(_SHOWN))
    ]


def _entries(part: Recomputation) -> dict[str, Any]:
    found = show.picked(
        part,
        *("budget", "proved"),
        predicted_bytes="predicted",
        recorded_bytes="eager",
    )
    found["recomputed"] = part.recomputed_milli / 1000
    found["units"] = [each.name for each in part.units]
    return found


def show_curve(
    given: Trace | Problem,
    keep: Sequence[str],
    name: str,
    output: Path | None,
    force: bool,
    json_: bool,
) -> None:
    """Choices from the recorded peak to the least, as a table and a picture."""
    from memplan.plotting.save import check_target, save

    if output is not None:
        check_target(output, force=force)
    budgeting = _budgeting(given, keep)
    front = budgeting.curve(POINTS)
    if output is not None:
        from memplan.plotting.budget import plot_budget

        points = [(each.peak, each.units.recomputed_milli / 1000) for each in front]
        save(plot_budget(points, name), output, force=force)
    if json_:
        points_ = [_entries(each.units) for each in front]
        timed = budgeting.candidates.timed
        entries = {"points": points_, "output": output, "timed": timed}
        show.as_json(entries, "memplan.budget-curve")
        return
    rows = [
        (
            budget_of(each.units.budget),
            format_bytes(each.peak),
            format_share(each.peak / budgeting.eager),
            format_share(each.units.recomputed_milli / 1000),
            f"{len(each.units.units):,}",
        )
        for each in front
    ]
    title = f"memplan: {len(front)} choices from the recorded peak to the least"
    columns = ("budget", "peak expected", "of recorded", "recomputed", "units")
    show.table(title, columns, rows, texts=0)
    if not budgeting.candidates.timed:
        show.line("  the recording has no times: bytes allocated stand for them")
    for first, text in _excluded(budgeting):
        show.line(f"  {first:<9} {text}")
    if output is not None:
        show.line(f"  drew {shlex.quote(str(output))}")
