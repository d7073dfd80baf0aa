"""memplan blocking codesign"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.area_curve import area_curve as trace_curve
from memplan.blocking.nest.array import Datapath
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.plan import CurvePoint
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_datapath
from memplan.cli.blocking import meanings, options, report, results
from memplan.cli.blocking.meanings import searching
from memplan.cli.progress import working
from memplan.files import refuse_overwrite
from memplan.units import format_bytes

_LEAST, _MOST = 32 << 10, 16 << 20  # bytes of the curve's budgets, in powers of two


@click.command("codesign")
@options.layer
@options.budget
@options.precision
@options.sliding
@options.unroll_or_auto
@click.option(
    "--area-curve",
    is_flag=True,
    help="Also print the least energy found for budgets of 32KiB, 64KiB, ... up to "
    "--budget.  [default: 16MiB]",
)
@options.search
@options.output
@options.json_
def command(
    layer_text: str,
    budget: str | None,
    bits: str | None,
    technology: Path | None,
    sliding: bool,
    unroll: str,
    area_curve: bool,
    time_limit: float | None,
    threads: int | None,
    output: Path | None,
    force: bool,
    json_: bool,
) -> None:
    """Find a loop nest and the memories for it together.

    Every buffer has a memory of its own size; --budget limits their sum. memplan
    also prints the area of the memories and the datapath, in 45 nm as in the paper,
    or as --technology says.

    \b
    Example: memplan blocking codesign --layer conv1 --budget 1MiB
    """
    layer = parse_layer(layer_text)
    objective = meanings.own_memories(budget, bits, technology, sliding)
    if output is not None:
        refuse_overwrite(output, force)
    datapath = meanings.datapath_or_array(unroll)
    how = Options(time_limit=time_limit, threads=threads)
    with searching(how.method) as progress:
        found = search_datapath(layer, datapath, objective, how, progress)
    curve: tuple[CurvePoint, ...] = ()
    if area_curve and not found.interrupted:
        most = _MOST if objective.budget is None else objective.budget
        curve = _curve(layer, datapath, most, how, objective)
    plan = results.planned([ModelLayer(layer, 1)], [found], objective, curve)
    results.hand_over(plan, objective, output=output, force=force, json_=json_)


def _curve(
    layer: Layer,
    unroll: Datapath,
    most: int,
    how: Options,
    objective: Codesign,
) -> tuple[CurvePoint, ...]:
    budgets = [_LEAST << i for i in range(64) if _LEAST << i < most] + [most]
    points = []
    with working("area curve") as report_line:
        for point in trace_curve(layer, budgets, unroll, how, objective):
            energy = report.energy(point.energy_pj)
            report_line(f"{format_bytes(point.budget)}: {energy}")
            points.append(point)
    return tuple(points)
