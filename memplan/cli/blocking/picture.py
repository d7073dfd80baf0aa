"""A blocking plan as the plain data that pictures are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.blocking.cost.evaluation import Evaluation
from memplan.blocking.plan import BlockingPlan, PlannedLayer
from memplan.blocking.planfile import read_plan
from memplan.cli.blocking import report
from memplan.formats.sniff import Opened
from memplan.plotting.blocked import (
    AreaPoint,
    DrawnBuffer,
    EnergyBars,
    LoopNest,
    TimedPoint,
    blocked,
)
from memplan.units import format_bytes, format_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(file: Opened) -> Figure:
    """The picture of the blocking plan in `file`. Raises as `read_plan` does."""
    plan = read_plan(file)
    single = plan.layers[0].evaluation if len(plan.layers) == 1 else None
    return blocked(
        [_bars(one.evaluation, one.count) for one in plan.layers],
        Path(file.path).name if single is None else single.layer.name,
        _facts(plan),
        nest=None if single is None else _nest(single),
        curve=[
            AreaPoint(
                point.budget,
                point.sram_bytes,
                point.area_mm2,
                point.energy_pj / plan.macs,
            )
            for point in plan.curve
        ],
        front=[] if single is None else _front(plan.layers[0]),
        chosen=None if single is None else _chosen(single),
    )


def _front(planned: PlannedLayer) -> list[TimedPoint]:
    found = planned.evaluation
    return [
        TimedPoint(one.cycles, found.per_mac(one.energy))
        for one in planned.search.front
    ]


def _chosen(found: Evaluation) -> TimedPoint | None:
    if found.latency is None:
        return None
    return TimedPoint(found.latency.cycles, found.per_mac(found.total))


def _facts(plan: BlockingPlan) -> list[str]:
    per_mac = f"{plan.total / plan.macs:.4g} pJ/MAC"
    memory = plan.memory or "each buffer a memory of its own"
    if plan.budget is not None:
        memory += f", {format_bytes(plan.budget)} in all"
    facts = [memory, f"{report.energy(plan.total)}, {per_mac}"]
    if plan.cycles is not None and all(
        one.evaluation.latency and one.evaluation.latency.bounded for one in plan.layers
    ):
        facts.append(f"{plan.cycles:,.0f} cycles")
    spaces = sorted({one.search.space for one in plan.layers})
    among = f"among {' and '.join(map(report.space_text, spaces))}"
    minimized = sorted({one.search.minimized for one in plan.layers} - {"energy"})
    least = f" for {' and '.join(minimized)}" if minimized else ""
    proof = f"proved optimal{least} {among}"
    if len(plan.layers) == 1:
        facts.insert(0, report.layer_text(plan.layers[0].evaluation.layer))
    else:
        facts.insert(0, f"{len(plan.layers)} layers")
        proof = f"every nest proved optimal{least} {among}"
    facts += _arrays(plan)
    methods = ", ".join(sorted({one.search.method for one in plan.layers}))
    proved = all(one.search.proved_optimal for one in plan.layers)
    return [*facts, f"{methods}, {proof}" if proved else methods]


def _arrays(plan: BlockingPlan) -> list[str]:
    """How much of an array is used, where mappings were chosen for one."""
    found = [(one.evaluation.nest, one.search.mapping) for one in plan.layers]
    chosen = [(nest, mapping) for nest, mapping in found if mapping is not None]
    if not chosen:
        return []
    used = [report.array_used(nest, mapping) for nest, mapping in chosen]
    least, most = format_share(min(used)), format_share(max(used))
    share = least if least == most else f"{least} to {most}"
    return [f"{share} of {chosen[0][1].array} used"]


def _bars(found: Evaluation, count: int) -> EnergyBars:
    layer = found.layer
    parts = {
        tensor.value: {
            level: found.per_mac(found.pj(level, tensor)) for level in found.levels
        }
        for tensor in layer.tensors
    }
    times = f" × {count}" if count > 1 else ""
    return EnergyBars(
        layer.name + times,
        parts,
        found.per_mac(found.compulsory),
        found.mac_pj,
        found.total * count,
    )


def _nest(found: Evaluation) -> LoopNest:
    nest = found.nest
    unroll = report.unroll_text(dict(nest.unroll))
    return LoopNest(
        [(loop.dim, loop.inner, loop.outer) for loop in nest.loops],
        [tensor.value for tensor in found.layer.tensors],
        [
            DrawnBuffer(
                placed.name,
                placed.tensor.value,
                placed.level,
                placed.buffer.begin,
                placed.buffer.end,
                placed.nbytes,
            )
            for placed in found.buffers
        ],
        f"datapath: {unroll} at once" if unroll else "datapath: one MAC at a time",
    )
