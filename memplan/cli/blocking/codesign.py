"""memplan blocking codesign"""

from __future__ import annotations

import click

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.area_curve import area_curve as trace_curve
from memplan.blocking.nest.array import Datapath
from memplan.blocking.nest.layer import Layer
from memplan.blocking.plan import CurvePoint
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_datapath
from memplan.cli.blocking import meanings, options, report, results
from memplan.cli.progress import working
from memplan.units import format_bytes

_LEAST, _MOST = 32 << 10, 16 << 20  # bytes of the curve's budgets, in powers of two


@click.command("codesign")
@options.layer
@options.own_memories
@options.unroll_or_auto
@click.option(
    "--area-curve",
    is_flag=True,
    help="Also print the least energy found for budgets of 32KiB, 64KiB, ... up to "
    "--budget.  [default: 16MiB]",
)
@options.search
@options.output
def command(
    layer: Layer,
    objective: Codesign,
    unroll: str,
    area_curve: bool,
    how: Options,
    output: results.Output,
) -> None:
    """Find a loop nest and the memories for it together.

    Every buffer has a memory of its own size; --budget limits their sum. memplan
    also prints the area of the memories and the datapath, in 45 nm as in the paper,
    or as --technology says.

    \b
    Example: memplan blocking codesign --layer conv1 --budget 1MiB
    """
    datapath = meanings.datapath_or_array(unroll)
    with meanings.searching(how.method) as progress:
        found = search_datapath(layer, datapath, objective, how, progress)
    curve: tuple[CurvePoint, ...] = ()
    if area_curve and not found.interrupted:
        curve = _curve(layer, datapath, how, objective)
    plan = results.planned([ModelLayer(layer, 1)], [found], objective, curve)
    results.hand_over(plan, objective, output)


def _curve(
    layer: Layer, unroll: Datapath, how: Options, objective: Codesign
) -> tuple[CurvePoint, ...]:
    most = _MOST if objective.budget is None else objective.budget
    budgets = [_LEAST << i for i in range(64) if _LEAST << i < most] + [most]
    points = []
    with working("area curve") as report_line:
        for point in trace_curve(layer, budgets, unroll, how, objective):
            energy = report.energy(point.energy_pj)
            report_line(f"{format_bytes(point.budget)}: {energy}")
            points.append(point)
    return tuple(points)
