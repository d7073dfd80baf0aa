"""memplan report"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.files import refuse_overwrite, write_bytes
from memplan.reporting.html.report import report
from memplan.units import format_bytes


@click.command("report")
@arguments.existing("trace", metavar="TRACE|SNAPSHOT")
@arguments.existing("plan", required=False, metavar="[PLAN]")
@arguments.output(
    "HTML file; - for standard output.  [default: TRACE.html]", metavar="FILE"
)
@click.option("--no-folders", is_flag=True, help="Omit the folders of source files.")
@arguments.force("the report if it exists")
@arguments.device
@arguments.json_
def command(
    trace: Path,
    plan: Path | None,
    output: Path | None,
    no_folders: bool,
    force: bool,
    device: int | None,
    json_: bool,
) -> None:
    """Write an HTML report of TRACE.

    The report is one self-contained file; it makes no network requests. It shows live
    bytes by category, every buffer at its address, what is alive at any moment, and
    stacks. With a PLAN made from TRACE, it also shows the buffers under the plan.

    \b
    Example: memplan report train.parquet train.plan.json -o train.html
    """
    path = output or Path(f"{arguments.stem(trace, '.pickle', '.pkl')}.html")
    refuse_overwrite(path, force)
    given = arguments.trace_or_plan(trace, device)
    if isinstance(given, Plan):
        raise UsageError(
            f"{trace} is a plan; name the trace that it was made from before it, or "
            f"draw it alone: memplan plot {trace} -o packing.png"
        )
    planned = None if plan is None else arguments.read_plan(plan)
    page = report(given, planned, paths=not no_folders)
    write_bytes(path, page.encode("utf-8", "backslashreplace"))
    words = f"wrote {path}: {format_bytes(len(page))}; open it in a browser"
    show.written(path, "html", words, json_)
