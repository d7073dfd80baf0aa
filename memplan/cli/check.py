"""memplan check"""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import click

from memplan.cli import arguments, show, sources
from memplan.errors import UsageError
from memplan.files import append_text
from memplan.reporting import github
from memplan.reporting.check import Limits, Of, Verdict, check
from memplan.units import parse_bytes


@click.command("check")
@arguments.existing("source", metavar="TRACE|SNAPSHOT|PLAN")
@click.option("--max", "most", metavar="BYTES", help="The most it may be, as in 12GiB.")
@click.option(
    "--of",
    type=click.Choice(get_args(Of)),
    default="live",
    show_default=True,
    help="Of a trace: the bytes live at the peak; what the CUDA allocator reserved at "
    "most; or the arena of a best-fit plan with what is alive outside it. Of a plan it "
    "is its arena.",
)
@click.option(
    "--baseline",
    type=click.Path(readable=False, path_type=Path),
    metavar="BASE",
    help="An earlier trace, or a plan for a plan, that it may not exceed.",
)
@click.option(
    "--tolerance",
    type=sources.Percent(),
    default=0.0,
    metavar="SHARE",
    help="By how much it may exceed the baseline, as in 2%.  [default: 0]",
)
@click.option("--no-leak", is_flag=True, help="And memory may not grow over steps.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="github: an annotation of the line, and a summary of the job.",
)
@arguments.device
@arguments.json_
def command(
    source: Path,
    most: str | None,
    of: Of,
    baseline: Path | None,
    tolerance: float,
    no_leak: bool,
    format_: str,
    device: int | None,
    json_: bool,
) -> None:
    """Hold the peak of a recording against a limit, or against an earlier one.

    Ends with 1, and one line that says by how much and where, if it does not pass. A
    recording in which a request failed does not.

    \b
    Example: memplan check train.parquet --max 12GiB --no-leak
    """
    if json_ and format_ != "text":
        raise UsageError("--json and --format github both claim standard output")
    limits = Limits(
        most=None if most is None else parse_bytes(most),
        baseline=None if baseline is None else sources.trace_or_plan(baseline, device),
        tolerance=tolerance,
        no_leak=no_leak,
        of=of,
    )
    verdict = check(sources.trace_or_plan(source, device), limits)
    if json_:
        show.as_json(verdict.entries())
    elif format_ == "github":
        _tell_github(verdict, source.name)
    elif verdict.passed:
        show.line(f"memplan: check passed: {verdict.message}")
    if not verdict.passed and not json_:
        show.complaint(f"check failed: {verdict.message}")
    if not verdict.passed:
        click.get_current_context().exit(1)


def _tell_github(verdict: Verdict, name: str) -> None:
    if line := github.annotation(verdict):
        show.fault(line)
    else:
        show.line(f"memplan: check passed: {verdict.message}")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_text(path, github.summary(verdict, name))
