"""memplan check"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import arguments, show
from memplan.errors import UsageError
from memplan.files import append_text
from memplan.formats.plain import plain
from memplan.reporting.check import Limits, Of, Verdict, check, described
from memplan.units import format_bytes, parse_bytes


@click.command("check")
@arguments.existing("source", metavar="TRACE|SNAPSHOT|PLAN")
@click.option(
    "--max", "most", type=parse_bytes, metavar="BYTES", help="Limit, such as 12GiB."
)
@click.option(
    "--of",
    type=click.Choice(get_args(Of)),
    default="live",
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
    type=arguments.percent,
    default=0,
    metavar="SHARE",
    help="Allowed excess over the baseline, such as 2%.",
)
@click.option("--no-leak", is_flag=True, help="Also fail if memory grows over steps.")
@click.option(
    "--no-cycles",
    is_flag=True,
    help="Also fail if Python's cycle collector frees more than 1 % of the peak.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "github"]),
    default="text",
    help="Output; github: an annotation and a job summary.",
)
@arguments.device
@arguments.json_
def command(
    source: Path,
    baseline: Path | None,
    format_: str,
    device: int | None,
    json_: bool,
    **limits: Any,
) -> None:
    """Compare the peak of a recording with a limit or an earlier recording.

    If the check fails, memplan prints by how much and where, and exits 1. A recording
    with a failed request never passes.

    \b
    Example: memplan check train.parquet --max 12GiB --no-leak
    """
    if json_ and format_ != "text":
        raise UsageError("--json and --format github cannot be combined; leave one out")
    base = None if baseline is None else arguments.trace_or_plan(baseline, device)
    limit = Limits(baseline=base, **limits)
    verdict = check(arguments.trace_or_plan(source, device), limit)
    if json_:
        show.as_json(plain(verdict), "memplan.check")
    elif format_ == "github":
        _tell_github(verdict, source.name)
    elif verdict.passed:
        show.line(f"memplan: check passed: {verdict.message}")
    if not verdict.passed and not json_:
        show.complaint(f"check failed: {verdict.message}")
    if not verdict.passed:
        click.get_current_context().exit(1)


def _tell_github(verdict: Verdict, name: str) -> None:
    """As GitHub's runners show it: an annotation, and a summary of the job."""
    if verdict.passed:
        show.line(f"memplan: check passed: {verdict.message}")
    else:
        show.fault(_annotation(verdict))
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_text(path, _summary(verdict, name))


def _annotation(verdict: Verdict) -> str:
    """The workflow command that marks the line in the changed files."""
    properties = "title=memplan check"
    site = verdict.site
    if site is not None and site.file:
        file = _data(_in_workspace(site.file))
        file = file.replace(":", "%3A").replace(",", "%2C")
        properties = f"file={file},line={max(site.line, 1)},{properties}"
    return f"::error {properties}::{_data(verdict.message)}"


def _summary(verdict: Verdict, name: str) -> str:
    """Markdown for the job's summary. name: of the trace or plan."""
    outcome = "passed" if verdict.passed else "**failed**"
    limit = "" if verdict.limit is None else format_bytes(verdict.limit)
    site = "" if verdict.site is None else described(verdict.site)
    cells = [_cell(name), outcome, format_bytes(verdict.value), limit, _cell(site)]
    row = " | ".join(cells)
    return (
        "### memplan check\n\n"
        "| file | outcome | value | limit | site |\n|---|---|---:|---:|---|\n"
        f"| {row} |\n\n{_cell(verdict.message)}\n\n"
    )


def _in_workspace(file: str) -> str:
    """`file` as the repository names it, where it lies within."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    """`text` as it stands, whatever Markdown makes of its characters."""
    return "".join(f"&#{ord(c)};" if c in "\\`|<>*_[]\n" else c for c in text)
