"""How blocking commands print cycles."""

from __future__ import annotations

from memplan.blocking.cost.evaluation import Evaluation
from memplan.blocking.cost.latency import DATAPATH
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.plan import BlockingPlan, PlannedLayer
from memplan.cli import show
from memplan.cli.blocking import report
from memplan.units import format_share


def time_rows(
    found: Evaluation, mapping: MappingSearch | None = None
) -> list[tuple[str, str]]:
    """Cycles, how busy they keep the datapath, and what stalls it."""
    latency = found.latency
    if latency is None or found.busy is None or found.edp is None:
        return []
    busy, what = found.busy, "the datapath"
    if mapping is not None:
        busy, what = busy * mapping.share(found.nest.unroll), f"{mapping.array}"
    used = f"{format_share(busy)} of {what} used"
    if not latency.bounded:
        return [
            ("cycles", f"{latency.steps:,}, {used}"),
            ("bandwidths", "none is given: cycles are the datapath's alone"),
        ]
    rows = [("cycles", f"{latency.cycles:,.0f}, {used}")]
    if latency.staller is None:
        rows.append(("stalls", "none: the datapath is never waited for"))
    else:
        most = latency.stalls[latency.staller]
        total = f"{latency.cycles - latency.steps:,.0f} cycles"
        own = latency.staller == DATAPATH
        where = "a step's own operands and sums" if own else latency.staller
        rows.append(("stalls", total))
        rows.append(("most for", f"{where}: {most:,.0f}"))
    if latency.edges:
        rows.append(("edges", f"{latency.edges:,.0f}: first tiles in, last ones out"))
    rows.append(("energy-delay", f"{found.edp:.5g} pJ cycles, with the MACs' energy"))
    return rows


def time_table(found: Evaluation) -> None:
    """Every port, and how long it is busy; nothing where no bandwidth is known."""
    latency = found.latency
    if latency is None or not latency.ports:
        return
    rows = [
        [
            port.level,
            "all" if port.tensor is None else port.tensor.value,
            "reads and writes" if port.way == "both" else port.way,
            report.amount(port.nbytes),
            f"{port.bandwidth:g}",
            report.amount(port.cycles),
            format_share(port.cycles / latency.cycles),
        ]
        for port in latency.ports
    ]
    show.line("")
    columns = ["level", "tensor", "port", "bytes", "bytes/cycle", "cycles", "busy"]
    show.table("Time", columns, rows)


def cycles_cells(found: Evaluation) -> list[str]:
    """The cycles of a layer, run once, if they were counted."""
    return [] if found.latency is None else [report.amount(found.latency.cycles)]


def front_table(planned: PlannedLayer, whose: str = "") -> None:
    """The nests between least energy and fewest cycles."""
    front = planned.search.front
    if not front:
        return
    found = planned.evaluation
    rows = [
        [
            f"{point.cycles:,.0f}",
            report.energy(point.energy),
            f"{found.per_mac(point.energy):.4f}",
            point.string,
        ]
        for point in front
    ]
    show.line("")
    title = f"{whose}Between least energy and fewest cycles, of all nests looked at"
    show.table(title, ["cycles", "energy", "pJ/MAC", "loops"], rows)


def plan_time_rows(plan: BlockingPlan) -> list[tuple[str, str]]:
    """Cycles of all layers, each as often as it is run."""
    known = [one.evaluation.latency for one in plan.layers]
    if plan.cycles is None or not all(one and one.bounded for one in known):
        return []
    return [("cycles", f"{plan.cycles:,.0f}, one layer after the other")]
