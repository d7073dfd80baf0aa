"""`memplan verify PLAN SCRIPT`: a plan with a budget, tried on its program."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from memplan.applying.trial import ENVIRONMENT, Rehearsal, Verdict, try_out
from memplan.cli import show
from memplan.core.plan import Plan
from memplan.errors import CheckFailed
from memplan.recording.forking import ForkServer
from memplan.recording.target import Target
from memplan.units import format_bytes


def command(path: Path, plan: Plan, target: Target, trial: bool, json_: bool) -> None:
    """Print what was found; exit 1 if the plan does not hold what it promises."""
    with ForkServer(os.environ | ENVIRONMENT) as server:
        _try(Rehearsal(plan, path, target, server), path, target, trial, json_)


def _try(
    rehearsal: Rehearsal, path: Path, target: Target, trial: bool, json_: bool
) -> None:
    budget = rehearsal.part.budget
    fake = rehearsal.run(range(len(rehearsal.part.units)), "fake")
    problems = []
    # What kernels allocate themselves is only estimated there: the trial decides.
    if fake.failure and not trial:
        problems.append(f"it cannot be tried under fake tensors: {fake.failure}")
    elif fake.peak > budget and not trial:
        problems.append(
            f"{format_bytes(fake.peak)} under fake tensors, which is more than the "
            f"budget of {format_bytes(budget)}"
        )
    verdict = None
    if trial:
        verdict = try_out(rehearsal, lambda text: show.note(f"trial: {text}"))
        if verdict.unlike:
            problems.append(
                "two runs of the program as it is are not alike, so nothing can be "
                f"compared: {verdict.unlike}"
            )
        problems += [f"{name}: {why}" for name, why in verdict.differing.items()]
        if verdict.peak > budget:
            problems.append(
                f"{format_bytes(verdict.peak)} measured, which is more than the budget "
                f"of {format_bytes(budget)}"
            )
    if json_:
        show.as_json(
            _entries(rehearsal, fake.peak, fake.failure, verdict, problems),
            "memplan.trial",
        )
        sys.exit(CheckFailed.exit_code if problems else 0)
    for problem in problems:
        show.fault(f"{path}: {problem}")
    if verdict is not None and verdict.differing:
        keep = " ".join(f"--keep {shlex.quote(each)}" for each in verdict.differing)
        show.line(f"  next: memplan solve TRACE --budget min {keep}")
    if problems:
        raise CheckFailed(f"{path} does not hold what it promises")
    rows = [("budget", format_bytes(budget))]
    rows.append(
        (
            "fake",
            format_bytes(fake.peak) if fake.peak else f"not possible: {fake.failure}",
        )
    )
    if verdict is not None:
        peak, eager = map(format_bytes, (verdict.peak, verdict.eager))
        saved = f"{peak} measured, {eager} as it is"
        rows += [
            ("peak", saved),
            (
                "equal",
                f"{verdict.compared:,} losses, gradients, buffers and states",
            ),
        ]
    show.facts(f"memplan: {path} holds on {' '.join(target.command())}", rows)


def _entries(
    rehearsal: Rehearsal,
    fake: int,
    failure: str,
    verdict: Verdict | None,
    problems: list[str],
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "valid": not problems,
        "problems": problems,
        "budget": rehearsal.part.budget,
        "predicted_bytes": rehearsal.part.predicted,
        "fake_bytes": fake,
        "fake_failure": failure,
        "runs": rehearsal.runs,
    }
    if verdict is not None:
        found |= show.picked(
            verdict,
            "differing",
            "unlike",
            "compared",
            measured_bytes="peak",
            recorded_bytes="eager",
        )
    return found
