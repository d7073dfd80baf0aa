"""What blocking commands print as JSON."""

from __future__ import annotations

from dataclasses import replace

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.paper_pricing import paper_energy
from memplan.blocking.cost.timing_file import front_entries, latency_entry
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.nest.array_file import mapping_entry
from memplan.blocking.nest.counts import Buffer, Traffic, count
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Loop, Nest
from memplan.blocking.nest.paper_counts import PaperTraffic, count_as_paper
from memplan.blocking.nest.precision import Precision
from memplan.blocking.plan import BlockingPlan, PlannedLayer
from memplan.blocking.search.timed import evaluation_of
from memplan.cli.blocking.report import array_used


def layer_entry(layer: Layer) -> dict[str, object]:
    """A layer's name, sizes and multiplications."""
    sizes: dict[str, object] = {dim: layer.size(dim) for dim in DIMS}
    rest = {"stride": list(layer.stride), "kernel": layer.kernel, "macs": layer.macs}
    return {"name": layer.name, **sizes, **rest}


def bits_entry(precision: Precision) -> dict[str, object]:
    """Bits of the elements, and what they are multiplied as."""
    return dict(vars(precision))


def case_entries(
    layer: Layer, nest: Nest, objective: Objective, minimize: str = "energy"
) -> dict[str, object]:
    """Both ways of counting, and own memories;
    `energy_pJ`, `buffers` and `pack` are for the memories and the budget given."""
    given = evaluation_of(layer, nest, objective, minimize)
    precision = objective.precision
    own = Codesign(objective.technology.curves(), precision=precision)
    if isinstance(objective, Codesign):
        own = replace(objective, budget=None)
    free = best_evaluation(layer, nest, own)
    traffic = count(nest)
    as_paper, free_pj = count_as_paper(nest), _of_all(free)
    free_by_tensor = {tensor.value: pj for tensor, pj in free.by_tensor.items()}
    found: dict[str, object] = {
        "schema": "memplan.blocking-evaluation",
        "version": 1,
        "layer": layer_entry(layer),
        "string": str(nest),
        "unroll": dict(nest.unroll),
        "utilisation": nest.utilisation,
        "bits": bits_entry(precision),
        "mac_pJ": given.mac_pj,
        "exact": {t.value: _exact(own) for t, own in traffic.items()},
        "stripes": _stripes(nest, traffic[Tensor.INPUT]),
        "paper_literal": {t.value: _literal(own) for t, own in as_paper.items()},
        "energy_codesign_pJ": {
            "total": free_pj,
            **free_by_tensor,
            "sram_bytes": free.sram_bytes,
        },
        "energy_codesign_per_mac_pJ": free_pj / layer.macs,
        "compulsory_pJ": given.compulsory,
        "energy_pJ": given.total,
        "energy_per_mac_pJ": given.per_mac(given.total),
        "sram_bytes": given.sram_bytes,
        "buffers": buffer_entries(given),
        "energy_codesign_paper_literal_pJ": paper_energy(nest, own.curves, precision),
    }
    found |= time_entries(given)
    if isinstance(objective, Fixed):
        found["memory"] = objective.hierarchy.name
        found["pack"] = _packed(given)
    elif objective.budget is not None:
        found["budget"] = objective.budget
        found["energy_codesign_budget_pJ"] = given.total
    return found


def planned_entries(planned: PlannedLayer) -> dict[str, object]:
    """One layer's nest, its energy, and how good it is."""
    found, search = planned.evaluation, planned.search
    return {
        "schema": "memplan.blocking-result",
        "version": 1,
        "layer": layer_entry(found.layer),
        "count": planned.count,
        "string": str(found.nest),
        "unroll": dict(found.nest.unroll),
        "utilisation": array_used(found.nest, search.mapping),
        "mapping": mapping_entry(search.mapping),
        "bits": bits_entry(found.precision),
        "mac_pJ": found.mac_pj,
        "method": search.method,
        "seconds": search.seconds,
        "space": search.space,
        "proved_optimal": search.proved_optimal,
        "minimized": search.minimized,
        "lower_bound": search.lower_bound,
        "lower_bound_pJ": search.lower_bound if search.minimized == "energy" else None,
        "gap": planned.gap,
        "energy_pJ": found.total,
        "energy_per_mac_pJ": found.per_mac(found.total),
        "compulsory_pJ": found.compulsory,
        "sram_bytes": found.sram_bytes,
        "buffers": buffer_entries(found),
        "energy": [
            {
                "level": share.level,
                "tensor": share.tensor.value,
                "accesses": share.accesses,
                "pJ": share.pj,
            }
            for share in found.shares
        ],
        **time_entries(found, search.mapping),
        "front": front_entries(search.front),
    }


def time_entries(
    found: Evaluation, mapping: MappingSearch | None = None
) -> dict[str, object]:
    """Cycles, where they were counted, and what takes them."""
    if found.latency is None:
        return {"latency": None, "edp_pJ_cycles": None, "utilisation_in_time": None}
    busy = found.busy
    if busy is not None and mapping is not None:
        busy *= mapping.share(found.nest.unroll)
    return {
        "latency": latency_entry(found.latency),
        "edp_pJ_cycles": found.edp,
        "utilisation_in_time": busy,
    }


def curve_entries(plan: BlockingPlan) -> list[dict[str, object]]:
    """The least energy within each budget."""
    return [
        {
            "budget": point.budget,
            "sram_bytes": point.sram_bytes,
            "area_mm2": point.area_mm2,
            "energy_pJ": point.energy_pj,
            "energy_per_mac_pJ": point.energy_pj / plan.macs,
        }
        for point in plan.curve
    ]


def all_entries(plan: BlockingPlan) -> dict[str, object]:
    """Every layer, and the energy of all, each as often as it is run."""
    return {
        "schema": "memplan.blocking-results",
        "version": 1,
        "memory": plan.memory,
        "budget": plan.budget,
        "energy_pJ": plan.total,
        "energy_per_mac_pJ": plan.total / plan.macs,
        "cycles": plan.cycles,
        "seconds": sum(one.search.seconds for one in plan.layers),
        "space": _spaces(plan),
        "proved_optimal": all(one.search.proved_optimal for one in plan.layers),
        "layers": [planned_entries(one) for one in plan.layers],
    }


def _spaces(plan: BlockingPlan) -> str:
    """Of every layer, if it is the same."""
    return "; ".join(sorted({one.search.space for one in plan.layers}))


def buffer_entries(found: Evaluation) -> list[dict[str, object]]:
    """Every buffer of a nest with its level, and what passes through it by the loops.

    These count whether or not it has a memory of its own.
    """
    return [
        {
            "name": placed.name,
            "tensor": placed.tensor.value,
            "level": placed.level,
            "elements": placed.buffer.elements,
            "bytes": placed.nbytes,
            "reads": placed.buffer.reads,
            "writes": placed.buffer.writes,
            "fills": placed.buffer.fills,
            "drains": placed.buffer.drains,
            "stripe_of": _text(found.swept_by(placed)),
            "slides_along": _text(found.slides_along(placed)),
        }
        for placed in found.buffers
    ]


def _text(loop: Loop | None) -> str | None:
    return None if loop is None else str(loop)


def _of_all(found: Evaluation) -> float:
    return sum(found.by_tensor.values())


def _exact(own: Traffic) -> dict[str, object]:
    rows = [_passed(buffer) for buffer in own.buffers]
    return {"buffers": rows, "dram_accesses": own.main}


def _stripes(nest: Nest, own: Traffic) -> list[dict[str, object]]:
    return [
        {"loop": str(nest.loops[buffer.begin]), **_passed(buffer)}
        for buffer in own.stripes
    ]


def _passed(buffer: Buffer) -> dict[str, object]:
    return {
        "elements": buffer.elements,
        "reads_served": buffer.reads,
        "writes_from_below": buffer.writes,
        "fills_from_above": buffer.fills,
        "drains_to_above": buffer.drains,
    }


def _literal(own: PaperTraffic) -> dict[str, object]:
    rows = [
        {
            "elements": buffer.elements,
            "refetch_rate": buffer.refetch,
            "accesses_eq1": buffer.accesses,
        }
        for buffer in own.buffers
    ]
    return {"buffers": rows, "dram_alpha": own.alpha}


def _packed(found: Evaluation) -> dict[str, object]:
    return {
        "accesses": {
            level: {
                s.tensor.value: s.accesses for s in found.shares if s.level == level
            }
            for level in found.levels
        },
        "total_pJ": _of_all(found),
        "assign": {placed.name: placed.level for placed in found.buffers},
    }
