"""What becomes of a search's nests: a plan file, JSON, or a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.paper import PaperTraffic, count_as_paper, paper_energy
from memplan.blocking.machine.technology import area_mm2
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.nest.counts import Buffer, count
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Loop, Nest
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.blocking.planfile import (
    NAMES,
    latency_entry,
    search_entry,
    write_plan,
)
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.search.result import Result
from memplan.blocking.search.timed import evaluation_of
from memplan.cli import show
from memplan.cli.blocking import report
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.plain import plain
from memplan.units import format_bytes, format_gap, format_seconds, format_share

# What the entries of an evaluation are called that are its attributes.
_EVALUATED = {"bits": "precision", "mac_pJ": "mac_pj", "energy_pJ": "total"}
_EVALUATED |= {"compulsory_pJ": "compulsory", "edp_pJ_cycles": "edp"}


@dataclass(frozen=True)
class Output:
    """Where a result goes: to a plan's file, and to standard output as JSON or text.

    Raises UsageError if the file must not be written.
    """

    output: Path | None
    force: bool
    json_: bool

    def __post_init__(self) -> None:
        if self.output is not None:
            refuse_overwrite(self.output, self.force)


def layer_entry(layer: Layer) -> dict[str, object]:
    """A layer's name, sizes and multiplications."""
    return {**plain(layer), "macs": layer.macs}


def nest_entries(nest: Nest, layer: Layer | None = None) -> dict[str, object]:
    """A nest and its layer, of which another part may have been looked at."""
    return {
        "layer": layer_entry(layer or nest.layer),
        "string": str(nest),
        "unroll": dict(nest.unroll),
    }


def evaluation_entries(
    found: Evaluation, mapping: MappingSearch | None = None
) -> dict[str, object]:
    """A nest, its energy, its buffers, and its cycles where they were counted."""
    busy = found.busy
    if busy is not None and mapping is not None:
        busy *= mapping.share(found.nest.unroll)
    return {
        **nest_entries(found.nest),
        **show.picked(found, "sram_bytes", **_EVALUATED),
        "utilisation": report.array_used(found.nest, mapping),
        "energy_per_mac_pJ": found.per_mac(found.total),
        "buffers": buffer_entries(found),
        "latency": latency_entry(found.latency),
        "utilisation_in_time": busy,
    }


def case_entries(nest: Nest, objective: Objective, minimize: str) -> dict[str, object]:
    """Both ways of counting, and own memories;
    `energy_pJ`, `buffers` and `pack` are for the memories and the budget given."""
    layer, precision = nest.layer, objective.precision
    given = evaluation_of(layer, nest, objective, minimize)
    each = Codesign(objective.technology.curves(), precision=precision)
    if isinstance(objective, Codesign):
        each = replace(objective, budget=None)
    free = best_evaluation(layer, nest, each)
    traffic, as_paper, free_pj = count(nest), count_as_paper(nest), _of_all(free)
    found: dict[str, object] = {
        **evaluation_entries(given),
        "exact": {
            tensor: {
                "buffers": list(map(_passed, own.buffers)),
                "dram_accesses": own.main,
            }
            for tensor, own in traffic.items()
        },
        "stripes": [
            {"loop": str(nest.loops[buffer.begin]), **_passed(buffer)}
            for buffer in traffic[Tensor.INPUT].stripes
        ],
        "paper_literal": {tensor: _literal(own) for tensor, own in as_paper.items()},
        "energy_codesign_pJ": {
            **plain(free.by_tensor),
            "total": free_pj,
            "sram_bytes": free.sram_bytes,
        },
        "energy_codesign_per_mac_pJ": free_pj / layer.macs,
        "energy_codesign_paper_literal_pJ": paper_energy(nest, each.curves, precision),
    }
    if isinstance(objective, Fixed):
        found["memory"] = objective.hierarchy.name
        found["pack"] = _packed(given)
    elif objective.budget is not None:
        found["budget"] = objective.budget
        found["energy_codesign_budget_pJ"] = given.total
    return found


def planned_entries(planned: PlannedLayer) -> dict[str, object]:
    """One layer's nest, its energy, and how good it is."""
    return {
        "schema": "memplan.blocking-result",
        "version": 1,
        **show.picked(planned, "count", "gap"),
        **search_entry(planned.search),
        **evaluation_entries(planned.evaluation, planned.search.mapping),
        "energy": plain(planned.evaluation.shares, NAMES),
    }


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
        # Of every layer, if it is the same.
        "space": "; ".join(sorted({one.search.space for one in plan.layers})),
        "proved_optimal": all(one.search.proved_optimal for one in plan.layers),
        "layers": [planned_entries(one) for one in plan.layers],
    }


def buffer_entries(found: Evaluation) -> list[dict[str, object]]:
    """Every buffer of a nest with its level, and what passes through it by the loops.

    These count whether or not it has a memory of its own.
    """

    def text(loop: Loop | None) -> str | None:
        return None if loop is None else str(loop)

    counts = ("elements", "reads", "writes", "fills", "drains")
    return [
        {
            **show.picked(placed, "name", "tensor", "level", bytes="nbytes"),
            **show.picked(placed.buffer, *counts),
            "stripe_of": text(found.swept_by(placed)),
            "slides_along": text(found.slides_along(placed)),
        }
        for placed in found.buffers
    ]


def _of_all(found: Evaluation) -> float:
    return sum(found.by_tensor.values())


def _passed(buffer: Buffer) -> dict[str, object]:
    names = {"reads_served": "reads", "writes_from_below": "writes"}
    names |= {"fills_from_above": "fills", "drains_to_above": "drains"}
    return show.picked(buffer, "elements", **names)


def _literal(own: PaperTraffic) -> dict[str, object]:
    names = {"refetch_rate": "refetch", "accesses_eq1": "accesses"}
    rows = [show.picked(buffer, "elements", **names) for buffer in own.buffers]
    return {"buffers": rows, "dram_alpha": own.alpha}


def _packed(found: Evaluation) -> dict[str, object]:
    return {
        "accesses": {
            level: {s.tensor: s.accesses for s in found.shares if s.level == level}
            for level in found.levels
        },
        "total_pJ": _of_all(found),
        "assign": {placed.name: placed.level for placed in found.buffers},
    }


def planned(
    layers: Sequence[ModelLayer],
    found: Sequence[Result],
    objective: Objective,
    curve: tuple[CurvePoint, ...] = (),
) -> BlockingPlan:
    """The plan of all layers, each evaluated again."""
    for result in found:
        report.note_if_interrupted(result)
    rows = tuple(
        PlannedLayer(
            evaluate(one.layer, result.nest, objective, choice=result.memories),
            Search(
                *(result.method, result.seconds, result.lower_bound, result.proved),
                *(result.space.value, result.minimized, result.front, result.mapping),
            ),
            one.count,
        )
        for one, result in zip(layers, found, strict=True)
    )
    if isinstance(objective, Codesign):
        return BlockingPlan(rows, None, objective.budget, curve)
    return BlockingPlan(rows, objective.hierarchy.name, None, curve)


def hand_over(
    plan: BlockingPlan,
    objective: Objective,
    to: Output,
    more: Mapping[str, object] | None = None,
    rows: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the plan if that is asked for, and print it: as JSON with the entries
    `more`, for people with the facts `rows`."""
    output = to.output
    if output is not None:
        write_plan(plan, output, force=to.force)
    alone = plan.layers[0] if len(plan.layers) == 1 else None
    if to.json_:
        entries = all_entries(plan) if alone is None else planned_entries(alone)
        if plan.memory is None:
            entries["area_mm2"] = max(_area(one, objective) for one in plan.layers)
        if plan.curve:
            entries["curve"] = [
                {**plain(each, NAMES), "energy_per_mac_pJ": each.energy_pj / plan.macs}
                for each in plan.curve
            ]
        show.as_json({**entries, **(more or {})})
        return
    for one in plan.layers:
        report.warn_of_idle(one.evaluation, one.search.mapping)
    if alone is not None:
        _report(alone, objective, rows)
    else:
        _overview(plan, objective, rows)
    if plan.curve:
        _curve(plan)
    if output is not None and output != STDOUT:
        show.note(f"wrote {output}")
        drawn = shlex.quote(str(output.with_suffix(".svg")))
        next_ = f"memplan plot {shlex.quote(str(output))} -o {drawn}"
        show.line(f"  next: {next_}", err=True)


def proof(planned: PlannedLayer) -> str:
    """What is known about better nests, and among which: "proved optimal among all
    nests", "gap at most 1.20 % to all nests", "gap unknown: ..."."""
    search, gap = planned.search, planned.gap
    if gap is None:
        return f"gap unknown: {report.NO_BOUND}"
    space = _space(search)
    if search.proved_optimal:
        return f"proved optimal among {space}"
    return f"gap at most {format_gap(gap)} to {space}"


def _space(search: Search) -> str:
    """What a bound or a proof is about."""
    space, mapping = report.space_text(search.space), search.mapping
    if mapping is None:
        return space
    mappings = "mappings" if mapping.complete else "mappings that fill a side"
    if search.space == "whole":
        return f"{space} and {mappings}"
    return f"{mappings} and {space}"


def _report(
    planned: PlannedLayer, objective: Objective, facts: Sequence[tuple[str, str]]
) -> None:
    """All about one layer's nest."""
    found, search = planned.evaluation, planned.search
    how = f"{search.method}, {format_seconds(search.seconds)}"
    if search.minimized != "energy":
        how = f"least {search.minimized}, {how}"
    rows = report.nest_rows(found, objective, search.mapping)
    rows += [("method", f"{how}, {proof(planned)}")]
    rows += report.energy_rows(found)
    rows += report.time_rows(found, search.mapping)
    if isinstance(objective, Codesign):
        mm2 = _area(planned, objective)
        rows.append(("area", report.area_text(mm2, objective.technology)))
    show.facts(f"memplan: {found.layer.name}", [*rows, *facts])
    report.tables(found, objective)
    report.front_table(planned)


def _area(planned: PlannedLayer, objective: Objective) -> float:
    return area_mm2(planned.evaluation.sram_bytes, objective.technology.area)


def _gaps(searches: Sequence[Search]) -> list[tuple[str, str]]:
    """What the gaps are to, and why some are unknown."""
    known = {_space(one) for one in searches if one.lower_bound is not None}
    unknown = any(one.lower_bound is None for one in searches)
    rows = []
    if known:
        spaces = " and of ".join(sorted(known))
        what = {one.minimized for one in searches} - {"energy"}
        of = "".join(f"of {one}, " for one in sorted(what))
        rows.append(("gaps", f"{of}to the best of {spaces}"))
    if unknown:
        rows.append(("unknown", report.NO_BOUND))
    return rows


def _mapping_table(plan: BlockingPlan) -> None:
    """The mapping chosen for each layer, how much of the array works, and what became
    of the other mappings; nothing where none was chosen."""
    rows = []
    for one in plan.layers:
        nest, mapping = one.evaluation.nest, one.search.mapping
        if mapping is not None:
            counts = mapping.mappings, mapping.searched, mapping.open
            used = format_share(report.array_used(nest, mapping))
            unroll = report.unroll_text(nest) or "one MAC"
            row = [one.evaluation.layer.name, unroll, used]
            rows.append([*row, *(f"{n:,}" for n in counts)])
    if rows:
        columns = ["layer", "at once", "used", "mappings", "searched", "left open"]
        show.line("")
        show.table("Spatial mappings", columns, rows)


def _mappings(found: Sequence[MappingSearch | None]) -> list[tuple[str, str]]:
    """What became of all layers' spatial mappings."""
    chosen = [one for one in found if one is not None]
    if not chosen:
        return []
    total = MappingSearch(
        chosen[0].array,
        sum(one.mappings for one in chosen),
        sum(one.pruned for one in chosen),
        sum(one.searched for one in chosen),
        all(one.complete for one in chosen),
    )
    return [("mappings", f"on {total.array}: {report.mapping_text(total)}")]


def _curve(plan: BlockingPlan) -> None:
    """The least energy within each budget."""
    rows = [
        [
            format_bytes(point.budget),
            format_bytes(point.sram_bytes),
            f"{point.area_mm2:.2f}",
            report.energy(point.energy_pj),
            f"{point.energy_pj / plan.macs:.4f}",
        ]
        for point in plan.curve
    ]
    columns = ["budget", "used", "mm²", "energy", "pJ/MAC"]
    show.line("")
    show.table("Least energy found, by area", columns, rows)


def _overview(
    plan: BlockingPlan, objective: Objective, facts: Sequence[tuple[str, str]]
) -> None:
    """A line for each layer, and one for all."""
    energy = f"{report.energy(plan.total)}, {plan.total / plan.macs:.5g} pJ/MAC"
    rows = [*report.bits_rows(objective), *report.memory_rows(objective)]
    timed = report.plan_time_rows(plan)
    rows += [("energy", energy), *timed]
    rows += _mappings([one.search.mapping for one in plan.layers])
    rows += [*_gaps([one.search for one in plan.layers]), *facts]
    show.facts(f"memplan: {len(plan.layers)} layers", rows)
    show.line("")
    lines = []
    own = isinstance(objective, Codesign)  # else memories are the same for all
    for one in plan.layers:
        found = one.evaluation
        row = [found.layer.name, str(one.count), report.amount(found.layer.macs)]
        row += [report.energy(found.total), f"{found.per_mac(found.total):.4f}"]
        if timed and found.latency is not None:
            row.append(report.amount(found.latency.cycles))
        row += [format_bytes(found.sram_bytes)] * own
        known = report.gap(one)
        lines.append([*row, known, format_seconds(one.search.seconds)])
    seconds = sum(one.search.seconds for one in plan.layers)
    runs = str(sum(one.count for one in plan.layers))
    whole = ["all", runs, report.amount(plan.macs), report.energy(plan.total)]
    whole += [f"{plan.total / plan.macs:.4f}"]
    whole += [*[report.amount(plan.cycles or 0)] * len(timed), *[""] * own, ""]
    lines.append([*whole, format_seconds(seconds)])
    columns = ["layer", "runs", "MACs", "energy", "pJ/MAC"]
    columns += [*["cycles"] * len(timed), *["on chip"] * own, "gap", "time"]
    show.table("Each layer, run once", columns, lines)
    _mapping_table(plan)
    for one in plan.layers:
        report.front_table(one, f"{one.evaluation.layer.name}: ")
