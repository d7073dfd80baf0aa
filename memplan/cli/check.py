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
@click.option("--max", "most", metavar="BYTES", help="Limit, such as 12GiB.")
@click.option(
    "--of",
    type=click.Choice(get_args(Of)),
    default="live",
    show_default=True,
    help="What to compare: live bytes at the peak; the most that the CUDA allocator "
    "reserved; or a best-fit plan's arena plus live bytes outside it. For a PLAN it is "
    "the arena.",
)
@click.option(
    "--baseline",
    type=click.Path(readable=False, path_type=Path),
    metavar="BASE",
    help="Earlier trace (or plan, for a PLAN) as the limit.",
)
@click.option(
    "--tolerance",
    type=sources.Percent(),
    default=0.0,
    metavar="SHARE",
    help="Allowed excess over the baseline, such as 2%.  [default: 0]",
)
@click.option("--no-leak", is_flag=True, help="Also fail if memory grows over steps.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="Output; github: an annotation and a job summary.",
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
    """Compare the peak of a recording with a limit or an earlier recording.

    If the check fails, memplan prints by how much and where, and exits 1. A recording
    with a failed request never passes.

    \b
    Example: memplan check train.parquet --max 12GiB --no-leak
    """
    if json_ and format_ != "text":
        raise UsageError("--json and --format github cannot be combined; leave one out")
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
