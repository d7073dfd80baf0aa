"""memplan convert"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.problem import Problem
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.sniff import Kind, Opened, sniff
from memplan.trace.exporters.minimalloc import write_minimalloc


@click.command("convert")
@arguments.existing("source", metavar="TRACE|PLAN|CSV")
@click.argument("output", type=arguments.OutputFile())
@click.option(
    "--step",
    default="hot",
    show_default=True,
    metavar="N|hot|all",
    help="Which step of a TRACE: a number, the one that repeats, or the whole run.",
)
@arguments.device
@arguments.force("OUTPUT if it exists")
def command(
    source: Path, output: Path, step: str, device: int | None, force: bool
) -> None:
    """Write the packing problem of a TRACE to OUTPUT, a MiniMalloc CSV file.

    An OUTPUT of - is standard output.
    Of a PLAN its offsets are written, too. Other solvers read that form, and so does
    memplan.

    \b
    Example: memplan convert train.plan.json packing.csv
    """
    if output != STDOUT and output.suffix != ".csv":
        raise UsageError(f"{output} is not a .csv file; that is what is written")
    refuse_overwrite(output, force)
    offsets = None
    with sniff(source) as file:
        if file.kind is not Kind.PLAN:
            problem = _problem(file, step, device)
        elif step == "hot":
            plan = arguments.read_plan(file)
            problem, offsets = plan.problem, plan.offsets
        else:
            raise UsageError(f"--step {step}: a plan has no steps to choose from")
    write_minimalloc(problem, output, offsets)
    show.note(f"wrote {len(problem):,} buffers to {output}")


def _problem(source: Opened, step: str, device: int | None) -> Problem:
    given = arguments.read_input(source, device=device)
    if isinstance(given, Problem):
        if step != "hot":
            raise UsageError(f"--step {step}: a bare problem has no steps")
        return given
    from memplan.trace.liveness import step_problem

    return step_problem(given, step).problem
