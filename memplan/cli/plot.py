"""memplan plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan.cli import arguments, show
from memplan.formats.sniff import Kind, Opened, sniff

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command("plot")
@arguments.existing("source", metavar="TRACE|SNAPSHOT|PLAN")
@click.option(
    "-o",
    "--output",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    required=True,
    help="Picture: .png, .svg or .pdf.",
)
@arguments.device
@arguments.force("the picture if it exists")
@arguments.json_
def command(
    source: Path, output: Path, device: int | None, force: bool, json_: bool
) -> None:
    """Draw the layout of a PLAN, or the memory of a TRACE over time.

    A SNAPSHOT of torch.cuda counts as a TRACE. For a blocking plan, memplan draws its
    energy by level and tensor, the loop nest of a single layer, and energy against area
    if the plan has it.

    \b
    Example: memplan plot train.plan.json -o packing.png
    """
    from memplan.plotting.save import check_target, save

    check_target(output, force=force)
    with sniff(source) as file:
        figure = _drawn(file, source.name, device)
    save(figure, output, force=force)
    show.written(output, output.suffix[1:], f"drew {output}", json_)


def _drawn(file: Opened, name: str, device: int | None) -> Figure:
    if file.kind is Kind.BLOCKING_PLAN:
        from memplan.cli.blocking.report import picture

        return picture(file)
    from memplan.plotting.timeline import plot

    return plot(arguments.trace_or_plan(file, device), name)
