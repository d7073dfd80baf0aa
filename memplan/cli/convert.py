"""memplan convert"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.problem import Problem
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.sniff import Kind, Opened, sniff
from memplan.trace.trace import Trace

# By form the ends of names that stand for it; those of two parts come first.
_ENDS = {
    "speedscope": (".speedscope.json",),
    "perfetto": (".perfetto.json", ".chrome.json"),
    "parquet": (".parquet",),
    "json": (".json", ".json.gz"),
    "csv": (".csv",),
    "memory_viz": (".pickle", ".pkl"),
}


@click.command("convert")
@arguments.existing("source", metavar="TRACE|SNAPSHOT|PLAN|CSV")
@click.argument("output", type=arguments.OutputFile())
@click.option(
    "--to",
    "form",
    type=click.Choice(sorted(_ENDS)),
    help="Format.  [default: by OUTPUT's name; csv to standard output]",
)
@click.option(
    "--step",
    default="hot",
    show_default=True,
    metavar="N|hot|all",
    help="Step of a TRACE for csv: a number, the one that repeats, or the whole run.",
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
    """Convert a TRACE for another program.

    \b
    OUTPUT             format
    .parquet           memplan's trace, the smallest
    .json, .json.gz    the same as JSON
    .csv               a MiniMalloc problem of one step; with offsets for a PLAN
    .pickle            a memory snapshot for torch.cuda._memory_viz
    .perfetto.json     Chrome trace events for ui.perfetto.dev
    .speedscope.json   bytes by stack for speedscope.app

    Use - as OUTPUT for standard output.

    \b
    Example: memplan convert snapshot.pickle train.parquet
    """
    form = form or _form_of(output)
    if form != "csv" and step != "hot":
        raise UsageError(f"--step {step} is for csv only; {form} holds the whole run")
    if form in ("parquet", "json"):
        _check_name(form, output)
    refuse_overwrite(output, force)
    with sniff(source) as file:
        words = (
            _csv(file, output, step, device)
            if form == "csv"
            else _other(file, output, form, device)
        )
    show.written(output, form, f"wrote {words} to {output}", json_)


def _form_of(output: Path) -> str:
    if output == STDOUT:
        return "csv"
    for form, ends in _ENDS.items():
        if output.name.endswith(ends):
            return form
    known = ", ".join(end for ends in _ENDS.values() for end in ends)
    raise UsageError(
        f"{output} is not a .csv file, nor of another form; end its name in one of "
        f"{known}, or say --to FORM"
    )


def _check_name(form: str, output: Path) -> None:
    """A trace's name says its form; standard output has none to say another."""
    if output != STDOUT and not output.name.endswith(_ENDS[form]):
        ends = " or ".join(_ENDS[form])
        raise UsageError(f"{output}: name a file that ends in {ends} for {form}")


def _csv(file: Opened, output: Path, step: str, device: int | None) -> str:
    from memplan.trace.exporters.minimalloc import write_minimalloc

    offsets = None
    if file.kind is not Kind.PLAN:
        problem = _problem(file, step, device)
    elif step == "hot":
        plan = arguments.read_plan(file)
        problem, offsets = plan.problem, plan.offsets
    else:
        raise UsageError(f"--step {step}: a plan has no steps to choose from")
    write_minimalloc(problem, output, offsets)
    return f"{len(problem):,} buffers"


def _problem(source: Opened, step: str, device: int | None) -> Problem:
    given = arguments.read_input(source, device=device)
    if isinstance(given, Problem):
        if step != "hot":
            raise UsageError(f"--step {step}: a bare problem has no steps")
        return given
    from memplan.trace.liveness import step_problem

    return step_problem(given, step).problem


def _other(file: Opened, output: Path, form: str, device: int | None) -> str:
    trace = _trace(file, form, device)
    if form == "parquet":
        from memplan.trace.parquet import write_parquet

        write_parquet(trace, output)
    elif form == "json":
        from memplan.trace.columnar_json import write_json

        write_json(trace, output)
    elif form == "memory_viz":
        from memplan.trace.exporters.memory_viz import write_memory_viz

        write_memory_viz(trace, output)
    elif form == "perfetto":
        from memplan.trace.exporters.perfetto import write_perfetto

        write_perfetto(trace, output)
    else:
        from memplan.trace.exporters.speedscope import write_speedscope

        write_speedscope(trace, output)
    return f"{len(trace):,} events"


def _trace(file: Opened, form: str, device: int | None) -> Trace:
    if file.kind in (Kind.PLAN, Kind.CSV):
        what = "a plan" if file.kind is Kind.PLAN else "a bare problem"
        raise UsageError(
            f"{file.path} is {what}, in which nothing runs: there is no {form} of it; "
            "name a trace, or write .csv"
        )
    from memplan.trace.read import read_trace

    return read_trace(file, device=device)
