"""What becomes of a search's nests: a plan file, JSON, or a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.machine.area import area_mm2
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.blocking.planfile import write_plan
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.search.result import Result
from memplan.cli import show
from memplan.cli.blocking import report
from memplan.cli.blocking.entries import all_entries, curve_entries, planned_entries
from memplan.cli.blocking.timing import (
    cycles_cells,
    front_table,
    plan_time_rows,
    time_rows,
    time_table,
)
from memplan.files import STDOUT
from memplan.units import format_bytes, format_gap, format_seconds, format_share


def planned(
    layers: Sequence[ModelLayer],
    found: Sequence[Result],
    objective: Objective,
    curve: tuple[CurvePoint, ...] = (),
) -> BlockingPlan:
    """The plan of all layers, each evaluated anew."""
    for result in found:
        report.note_if_interrupted(result)
    rows = tuple(
        PlannedLayer(
            evaluate(one.layer, result.nest, objective, choice=result.memories),
            Search(
                result.method,
                result.seconds,
                result.lower_bound,
                result.proved,
                result.space.value,
                result.minimized,
                result.front,
                result.mapping,
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
    *,
    output: Path | None,
    force: bool,
    json_: bool,
    more: Mapping[str, object] | None = None,
    rows: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the plan if that is asked for, and print it: as JSON with the entries
    `more`, for people with the facts `rows`."""
    if output is not None:
        write_plan(plan, output, force=force)
    alone = plan.layers[0] if len(plan.layers) == 1 else None
    if not json_:
        for one in plan.layers:
            report.warn_of_idle(one.evaluation, one.search.mapping)
    if json_:
        entries = all_entries(plan) if alone is None else planned_entries(alone)
        if plan.memory is None:
            entries["area_mm2"] = max(_area(one, objective) for one in plan.layers)
        if plan.curve:
            entries["curve"] = curve_entries(plan)
        show.as_json({**entries, **(more or {})})
        return
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
    nests", "gap at most 1.20 % to all nests", "gap unknown: beam has no bound"."""
    search, gap = planned.search, planned.gap
    if gap is None:
        return f"gap unknown: {report.no_bound(search.method)}"
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
    rows += [*report.energy_rows(found), *time_rows(found, search.mapping)]
    if isinstance(objective, Codesign):
        mm2 = _area(planned, objective)
        rows.append(("area", report.area_text(mm2, objective.technology)))
    show.facts(f"memplan: {found.layer.name}", [*rows, *facts])
    show.line("")
    report.buffer_table(found, objective)
    show.line("")
    report.energy_table(found)
    time_table(found)
    front_table(planned)


def _area(planned: PlannedLayer, objective: Objective) -> float:
    return area_mm2(planned.evaluation.sram_bytes, objective.technology.area)


def _gaps(searches: Sequence[Search]) -> list[tuple[str, str]]:
    """What the gaps are to, and why some are unknown."""
    known = {_space(one) for one in searches if one.lower_bound is not None}
    unknown = {one.method for one in searches if one.lower_bound is None}
    rows = []
    if known:
        spaces = " and of ".join(sorted(known))
        what = {one.minimized for one in searches} - {"energy"}
        of = "".join(f"of {one}, " for one in sorted(what))
        rows.append(("gaps", f"{of}to the best of {spaces}"))
    if unknown:
        rows.append(("unknown", "; ".join(map(report.no_bound, sorted(unknown)))))
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
            unroll = report.unroll_text(dict(nest.unroll)) or "one MAC"
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
    rows += [("energy", energy), *plan_time_rows(plan)]
    rows += _mappings([one.search.mapping for one in plan.layers])
    rows += [*_gaps([one.search for one in plan.layers]), *facts]
    show.facts(f"memplan: {len(plan.layers)} layers", rows)
    show.line("")
    lines = []
    own = isinstance(objective, Codesign)  # else memories are the same for all
    timed = bool(plan_time_rows(plan))
    for one in plan.layers:
        found = one.evaluation
        row = [found.layer.name, str(one.count), report.amount(found.layer.macs)]
        row += [report.energy(found.total), f"{found.per_mac(found.total):.4f}"]
        row += cycles_cells(found) * timed
        row += [format_bytes(found.sram_bytes)] * own
        known = report.gap(one)
        lines.append([*row, known, format_seconds(one.search.seconds)])
    seconds = sum(one.search.seconds for one in plan.layers)
    runs = str(sum(one.count for one in plan.layers))
    whole = ["all", runs, report.amount(plan.macs), report.energy(plan.total)]
    whole += [f"{plan.total / plan.macs:.4f}"]
    whole += [*[report.amount(plan.cycles or 0)] * timed, *[""] * own, ""]
    lines.append([*whole, format_seconds(seconds)])
    columns = ["layer", "runs", "MACs", "energy", "pJ/MAC"]
    columns += [*["cycles"] * timed, *["on chip"] * own, "gap", "time"]
    show.table("Each layer, run once", columns, lines)
    _mapping_table(plan)
    for one in plan.layers:
        front_table(one, f"{one.evaluation.layer.name}: ")
