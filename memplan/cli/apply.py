"""memplan apply"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from memplan.applying.replan import Replan
from memplan.applying.report import Report
from memplan.applying.residency import Memory
from memplan.applying.session import loader_of
from memplan.applying.suitability import check_program
from memplan.cli import arguments, show
from memplan.core.plan import Plan
from memplan.errors import MemplanError
from memplan.files import refuse_overwrite, write_bytes
from memplan.recording.launchers import through_launcher
from memplan.recording.ranks import of_rank, written_by_rank
from memplan.recording.shim import require_torch
from memplan.recording.target import run
from memplan.units import format_bytes, format_seconds

MOST_REPLANS = 6  # listed one by one


@click.command("apply", cls=arguments.ProgramCommand)
@click.option(
    "--report",
    type=arguments.OutputFile(arguments.THE_PROGRAMS),
    help="Write the report as JSON to this file, too; %r in it, and in PLAN, becomes "
    "the rank under torchrun.",
)
@arguments.force("the report if it exists")
@click.option(
    "--replan/--no-replan",
    default=True,
    show_default=True,
    help="Plan anew while the program runs, where the plan does not fit it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no report.")
@arguments.existing("plan")
@arguments.program
def command(
    report: Path | None,
    force: bool,
    replan: bool,
    quiet: bool,
    plan: Path,
    module: str | None,
    script: tuple[str, ...],
) -> None:
    """Run SCRIPT with the memory of its tensors laid out as PLAN says.

    The plan is verified first, with no way round. The program computes what it
    computed before, and its exit code is passed through. Requests that depart from
    the plan are served all the same, and counted.

    A plan made from a CUDA recording is applied to CUDA memory: experimental, it has
    not run on a GPU yet.

    \b
    Example: memplan apply train.plan.json train.py --epochs 90
    """
    target = arguments.target(module, script)
    words = ["apply", *(["--report", str(report)] if report is not None else [])]
    words.append("--replan" if replan else "--no-replan")
    flags = ("--force" * force, "--quiet" * quiet, str(plan))
    launcher = through_launcher(target, [*words, *filter(None, flags)])
    if launcher is not None:  # each of its children applies the plan
        sys.exit(run(launcher))
    plan = of_rank(plan)
    if report is not None:
        # Absolute: the program may go to another folder.
        report = Path(os.path.abspath(written_by_rank(report)))
        refuse_overwrite(report, force)
    found = arguments.read_plan(plan)
    loader = loader_of(found, str(plan), replan=replan)
    check_program(found, target.identity(), str(plan))
    _compare_environment(found)
    loader.start()
    process = os.getpid()
    try:
        code = run(target)
    finally:
        loader.stop()
    if os.getpid() != process:  # a forked child got here: its parent reports
        sys.exit(code)
    result = loader.report()
    if not quiet:
        _show(result)
        _compare_threads(found)
    if report is not None:
        text = json.dumps(result.to_json(), indent=2, sort_keys=True)
        try:
            write_bytes(report, text.encode() + b"\n")
        except MemplanError as failure:
            show.note(str(failure))
            code = code or failure.exit_code
    sys.exit(code)


def _compare_environment(plan: Plan) -> None:
    """Say what may make the program ask for something else than was recorded."""
    planned = plan.provenance.program.torch
    running = str(require_torch("applying a plan").__version__)
    if planned and planned != running:
        show.note(
            f"the plan was recorded with torch {planned}, and this is {running}: "
            "requests that differ will be served outside it"
        )


def _compare_threads(plan: Plan) -> None:
    """The number of threads decides what operators ask for; the program sets it."""
    planned = plan.provenance.program.threads
    threads = require_torch("applying a plan").get_num_threads()
    if planned and planned != threads:
        show.note(
            f"the plan was recorded with {planned} threads, and this ran with "
            f"{threads}: record it with as many, to plan all requests"
        )


def _show(report: Report) -> None:
    share = report.planned_requests / report.requests if report.requests else 0.0
    bound = format_bytes(report.lower_bound_bytes)
    rows = [
        ("requests", f"{report.requests:,} in hot steps, {share:.1%} planned"),
        ("conflicts", f"{report.conflicts:,}"),
        ("arena", f"{format_bytes(report.arena_bytes)}, lower bound {bound}"),
    ]
    if report.unplanned_requests:
        rows.append(
            ("unplanned", f"{report.unplanned_requests:,} that outlive their steps")
        )
    departures = report.online_requests + report.fallback_requests
    if departures:
        where = f"{report.online_requests:,} placed in the arena"
        outside = f"{report.fallback_requests:,} outside it"
        size = format_bytes(report.fallback_bytes)
        rows.append(("departures", f"{departures:,}: {where}, {outside} ({size})"))
    if report.interrupted_requests:
        rows.append(
            ("interrupted", f"{report.interrupted_requests:,} requests passed through")
        )
    if report.replans:
        rows += _replans(report.replans)
    if report.memory is not None:
        rows += _lives(report.memory)
    title = f"memplan: {report.steps:,} steps under the plan"
    if report.rank is not None:
        title += f", rank {report.rank}"
    show.facts(title, rows, err=True)
    show.table(
        "",
        ("", "recorded", "planned", "ratio"),
        [
            _compared("peak resident", "peak_rss_bytes", format_bytes, report),
            _compared(
                "page faults per step", "page_faults_per_step", "{:,.0f}".format, report
            ),
            _compared("time per step", "step_seconds", format_seconds, report),
        ],
    )


def _replans(replans: tuple[Replan, ...]) -> list[tuple[str, str]]:
    """How often and how long, and when and why."""
    longest = max(replan.seconds for replan in replans)
    times = "once" if len(replans) == 1 else f"{len(replans):,} times"
    rows = [("planned anew", f"{times}, in at most {format_seconds(longest)}")]
    for first in range(0, min(len(replans), MOST_REPLANS), 3):
        some = replans[first : min(first + 3, MOST_REPLANS)]
        shown = ", ".join(f"after step {r.step:,} ({r.reason})" for r in some)
        rows.append(("", shown))
    if len(replans) > MOST_REPLANS:
        rows.append(("", f"and {len(replans) - MOST_REPLANS:,} times more"))
    return rows


def _lives(memory: Memory) -> list[tuple[str, str]]:
    """Where resident memory lives, the largest part first, and what the arena holds."""
    parts = {
        "arena": memory.arena,
        "tensors outside it": memory.tensors_outside,
        "process before": memory.before,
        "other native": max(memory.other, 0),
    }
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    texts = [f"{name} {format_bytes(size)}" for name, size in ranked]
    live = format_bytes(memory.most_live_in_arena)
    return [
        ("resident", ", ".join(texts[:2])),
        ("", ", ".join(texts[2:])),
        ("most live", f"{live} of tensors in the arena"),
    ]


def _compared(
    title: str, name: str, shown: Callable[[float], str], report: Report
) -> tuple[str, str, str, str]:
    before, after = getattr(report.recorded, name), getattr(report.run, name)
    ratio = f"{after / before:.2f}" if before and after else "-"
    return title, shown(before) if before else "-", shown(after), ratio
