"""memplan report"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.errors import UsageError
from memplan.files import refuse_overwrite, write_bytes
from memplan.formats.sniff import Kind, sniff
from memplan.reporting.html.report import report
from memplan.trace.trace import Trace


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
    path = output or _default(trace)
    refuse_overwrite(path, force)
    given = _trace(trace, device)
    planned = None if plan is None else arguments.read_plan(plan)
    page = report(given, planned, paths=not no_folders)
    write_bytes(path, page.encode("utf-8", "backslashreplace"))
    words = f"wrote {path}: {show.size_of(len(page))}; open it in a browser"
    show.written(path, "html", words, json_)


def _default(trace: Path) -> Path:
    name = trace.name
    for suffix in (".parquet", ".json.gz", ".json", ".pickle", ".pkl"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.html")


def _trace(path: Path, device: int | None) -> Trace:
    from memplan.core.problem import Problem
    from memplan.trace.read import read_input

    with sniff(path) as file:
        if file.kind is Kind.PLAN:
            raise UsageError(
                f"{path} is a plan; name the trace that it was made from before it, or "
                f"draw it alone: memplan plot {path} -o packing.png"
            )
        found = read_input(file, device=device)
    if isinstance(found, Problem):
        raise UsageError(
            f"{path} is a bare problem, in which nothing runs; solve it, and plot "
            "its plan"
        )
    return found
