"""A blocking plan as a picture, and its facts above that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.blocking.plan import BlockingPlan
from memplan.blocking.planfile import read_plan
from memplan.cli.blocking import report
from memplan.formats.sniff import Opened
from memplan.plotting.blocked import blocked
from memplan.units import format_bytes, format_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(file: Opened) -> Figure:
    """The picture of the blocking plan in `file`. Raises as `read_plan` does."""
    plan = read_plan(file)
    first = plan.layers[0].evaluation
    title = first.layer.name if len(plan.layers) == 1 else Path(file.path).name
    unroll = report.unroll_text(dict(first.nest.unroll))
    datapath = f"{unroll} at once" if unroll else "one MAC at a time"
    return blocked(plan, title, _facts(plan), f"datapath: {datapath}")


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
