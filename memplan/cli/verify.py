"""memplan verify"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import Failure, Violation, verify
from memplan.errors import CheckFailed, NoPlanError, UsageError
from memplan.trace.liveness import step_problem
from memplan.units import format_bytes

_SHOWN = 20


@click.command("verify", context_settings={"ignore_unknown_options": True})
@arguments.existing("plan")
@click.argument(
    "against", metavar="[TRACE | SCRIPT [ARGUMENTS]]", nargs=-1, type=click.UNPROCESSED
)
@click.option(
    "-m", "module", metavar="MODULE", help="Module to try the plan on, as python -m."
)
@click.option(
    "--trial/--no-trial",
    default=True,
    help="Run some steps of SCRIPT as it is and with modules computed again, and "
    "compare all gradients. Without: under fake tensors only.",
)
@arguments.device
@arguments.json_
def command(
    plan: Path,
    against: tuple[str, ...],
    module: str | None,
    trial: bool,
    device: int | None,
    json_: bool,
) -> None:
    """Check that PLAN is safe, and that it was made for TRACE.

    The checker shares no code with the solvers. It prints every failure. If
    there is one, it exits 1.

    A plan made with --budget is tried on SCRIPT: under fake tensors, then in a few real
    steps, whose losses, gradients and buffers must be equal to the last bit. Modules
    that compute something else the second time are named.

    \b
    Example: memplan verify train.plan.json train.parquet
    Example: memplan verify train.plan.json train.py --epochs 1
    """
    if module is not None or _is_script(against):
        from memplan.cli import trial as tried

        target = arguments.target(module, against)
        found = arguments.read_plan(plan)
        _refuse_unsafe(plan, verify(found), json_)
        tried.command(plan, found, target, trial, json_)
        return
    trace = Path(against[0]) if against else None
    found = arguments.read_plan(plan)
    violations = verify(found)
    if trace is not None and found.recompute is not None and found.recompute.units:
        raise UsageError(
            f"{plan} computes modules again, which {trace} does not show; check it "
            f"with its program: memplan verify {plan} SCRIPT"
        )
    if trace is not None:
        violations += _against(found, trace, device)
    if json_:
        result = {"valid": not violations, "violations": violations}
        show.as_json(result, "memplan.verify-result")
        sys.exit(CheckFailed.exit_code if violations else 0)
    _refuse_unsafe(plan, violations, json_)
    buffers = f"{len(found.problem):,} buffers"
    size, arena = format_bytes(found.peak), ""
    if found.lifespan_bytes:  # another than the offsets reach
        arena = f"; arena {format_bytes(found.arena_bytes)}"
    show.line(f"{plan}: valid: {buffers} in {size}, none overlap{arena}")


def _is_script(words: tuple[str, ...]) -> bool:
    """Whether they are a program's, not the name of a trace."""
    return len(words) > 1 or any(word.endswith(".py") for word in words)


def _refuse_unsafe(plan: Path, violations: list[Violation], json_: bool) -> None:
    """Print the violations and raise CheckFailed, if there are any."""
    if json_ and violations:
        result = {"valid": False, "violations": violations}
        show.as_json(result, "memplan.verify-result")
        sys.exit(CheckFailed.exit_code)
    for violation in violations[:_SHOWN]:
        show.fault(f"{plan}: {violation.failure.value}: {violation.message}")
    if len(violations) > _SHOWN:
        show.fault(f"{plan}: and {len(violations) - _SHOWN:,} more")
    if violations:
        raise CheckFailed(f"{plan} is not safe to apply; solve the trace again")


def _against(plan: Plan, path: Path, device: int | None) -> list[Violation]:
    """Whether `plan` solves the problem that the trace at `path` poses now."""
    source = arguments.read_input(path, device=device)
    try:
        if isinstance(source, Problem):
            problem = source
        else:
            problem = step_problem(source, plan.provenance.source.step).problem
    except NoPlanError as error:
        text = f"{path} has no step to compare with: {error.shell}"
        return [Violation(Failure.FINGERPRINT, (), text)]
    if problem.fingerprint() == plan.problem.fingerprint():
        return []
    text = (
        f"the plan was made for another trace: it has {len(plan.problem):,} buffers, "
        f"fingerprint {plan.problem.fingerprint()[:12]}; {path} has "
        f"{len(problem):,}, fingerprint {problem.fingerprint()[:12]}"
    )
    return [Violation(Failure.FINGERPRINT, (), text)]
