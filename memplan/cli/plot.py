"""memplan plot"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.problem import Problem
from memplan.errors import UsageError


@click.command("plot")
@arguments.existing("source", metavar="TRACE|PLAN")
@click.option(
    "-o",
    "--output",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    required=True,
    help="The picture: .png, .svg or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace the picture if it exists.")
def command(source: Path, output: Path, force: bool) -> None:
    """Draw the packing of a PLAN, or the memory of a TRACE over time.

    Of a blocking plan: its energy by level and tensor, a single layer's loop nest,
    and energy against area, where the plan holds that.

    \b
    Example: memplan plot train.plan.json -o packing.png
    """
    from memplan.plotting.save import check_target, save

    check_target(output, force=force)
    if arguments.is_plan(source):
        from memplan.plotting.packing import packing

        figure = packing(arguments.read_plan(source), source.name)
    elif arguments.is_blocking_plan(source):
        from memplan.cli.blocking.picture import picture

        figure = picture(source)
    else:
        from memplan.plotting.memory import memory

        trace = arguments.read_input(source, "time_ns")
        if isinstance(trace, Problem):
            raise UsageError(f"{source} is a bare problem: solve it, and plot its plan")
        figure = memory(trace, source.name)
    save(figure, output, force=force)
    show.note(f"drew {output}")
