"""memplan convert"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.arrays import Int64Array
from memplan.cli import arguments, show
from memplan.core.problem import Problem
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.sniff import Kind, Opened, sniff
from memplan.trace.exporters import EXPORTERS
from memplan.trace.trace import Trace

_HELP = """Convert a TRACE for another program.

\b
{:19}format
{}

Use - as OUTPUT for standard output.

\b
Example: memplan convert snapshot.pickle train.parquet
""".format("OUTPUT", "\n".join(f"{e.ends[0]:19}{e.what}" for e in EXPORTERS.values()))


@click.command("convert", help=_HELP)
@arguments.existing("source", metavar="TRACE|SNAPSHOT|PLAN|CSV")
@click.argument("output", type=arguments.OutputFile())
@click.option(
    "--to",
    "form",
    type=click.Choice(sorted(EXPORTERS)),
    help="Format.  [default: by OUTPUT's name; csv to standard output]",
)
@arguments.step(
    "Step of a TRACE for csv: a number, the one that repeats, or the whole run."
)
@arguments.device
@arguments.force("OUTPUT if it exists")
@arguments.json_
def command(
    source: Path,
    output: Path,
    form: str | None,
    step: str,
    device: int | None,
    force: bool,
    json_: bool,
) -> None:
    form = form or _form_of(output)
    exporter = EXPORTERS[form]
    if not exporter.of_problem and step != "hot":
        raise UsageError(f"--step {step} is for csv only; {form} holds the whole run")
    # A trace's name says its form; standard output has none to say another.
    named = output == STDOUT or output.name.endswith(exporter.ends)
    if form in ("parquet", "json") and not named:
        ends = " or ".join(exporter.ends)
        raise UsageError(f"{output}: name a file that ends in {ends} for {form}")
    refuse_overwrite(output, force)
    with sniff(source) as file:
        if exporter.of_problem:
            problem, offsets = _problem(file, step, device)
            exporter.write(problem, output, offsets)
            words = f"{len(problem):,} buffers"
        else:
            trace = _trace(file, form, device)
            exporter.write(trace, output)
            words = f"{len(trace):,} events"
    show.written(output, form, f"wrote {words} to {output}", json_)


def _form_of(output: Path) -> str:
    if output == STDOUT:
        return "csv"
    ends = {end: form for form, each in EXPORTERS.items() for end in each.ends}
    fitting = [end for end in ends if output.name.endswith(end)]
    if fitting:
        return ends[max(fitting, key=len)]
    raise UsageError(
        f"{output} is not a .csv file, nor of another form; end its name in one of "
        f"{', '.join(ends)}, or say --to FORM"
    )


def _problem(
    file: Opened, step: str, device: int | None
) -> tuple[Problem, Int64Array | None]:
    """The problem in a trace's step, a CSV file or a plan, and a plan's offsets."""
    if file.kind is Kind.PLAN:
        if step != "hot":
            raise UsageError(f"--step {step}: a plan has no steps to choose from")
        plan = arguments.read_plan(file)
        return plan.problem, plan.offsets
    found = arguments.read_input(file, device=device)
    if isinstance(found, Problem):
        if step != "hot":
            raise UsageError(f"--step {step}: a bare problem has no steps")
        return found, None
    from memplan.trace.liveness import step_problem

    return step_problem(found, step).problem, None


def _trace(file: Opened, form: str, device: int | None) -> Trace:
    from memplan.trace.read import read_input

    plan = file.kind is Kind.PLAN
    found = None if plan else read_input(file, device=device)
    if isinstance(found, Trace):
        return found
    raise UsageError(
        f"{file.path} is {'a plan' if plan else 'a bare problem'}, in which nothing "
        f"runs: there is no {form} of it; name a trace, or write .csv"
    )
