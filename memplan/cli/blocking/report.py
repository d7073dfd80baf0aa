"""How blocking commands show layers, buffers, energies, cycles and plans."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.blocking.cost.evaluation import Evaluation
from memplan.blocking.cost.latency import DATAPATH
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.machine.technology import DIANNAO_MM2, FORTY_FIVE, Technology
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.precision import Precision
from memplan.blocking.plan import BlockingPlan, PlannedLayer
from memplan.blocking.planfile import read_plan
from memplan.blocking.search.result import Result
from memplan.cli import show
from memplan.formats.sniff import Opened
from memplan.units import format_bytes, format_gap, format_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LITTLE = 0.5  # of the datapath; less is warned of
_SHORT = 64  # characters of a value that one line holds
_NAMES = 16  # columns that names take, beside values
# Why a search has no lower bound: `divisors` bounds the rounded sizes, which take more.
NO_BOUND = "the datapath does not divide all sizes"
_EXACT_UP_TO = 9_999_999
_THOUSANDS = ("", " k", " M", " G", " T", " P", " E")
_ENERGIES = ("pJ", "nJ", "µJ", "mJ", "J", "kJ")


def amount(count: float) -> str:
    """A count: every digit up to ten million, then five: "924.84 M"."""
    if abs(count) <= _EXACT_UP_TO:
        return f"{round(count):,}"
    return _scaled(count, _THOUSANDS)


def energy(pj: float) -> str:
    """An energy given in pJ: "1.2504 mJ"."""
    unit = next((i for i in range(len(_ENERGIES)) if pj < 1000 ** (i + 1)), -1)
    return f"{pj / 1000 ** (unit % len(_ENERGIES)):.5g} {_ENERGIES[unit]}"


def area_text(mm2: float, technology: Technology) -> str:
    """An area, beside DianNao's where that is of the same process."""
    same = technology.area == FORTY_FIVE.area
    return f"{mm2:.2f} mm²" + f", DianNao's is {DIANNAO_MM2:g}" * same


def per_mac(evaluation: Evaluation, pj: float) -> str:
    """`pJ` as "1.3519 pJ/MAC", over the multiplications that the layer needs."""
    return f"{evaluation.per_mac(pj):.5g} pJ/MAC"


def _scaled(count: float, units: tuple[str, ...]) -> str:
    power = 0
    while abs(count) >= 999.995 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.2f}{units[power]}"


def layer_text(layer: Layer) -> str:
    """Its sizes in words: "28 x 28 x 256 -> 512, window 3 x 3"."""
    text = f"{layer.X} x {layer.Y} x {layer.C} -> {layer.K}"
    if (layer.Fw, layer.Fh) != (1, 1):
        text += f", window {layer.Fw} x {layer.Fh}"
    if layer.stride != (1, 1):
        text += f", stride {' x '.join(map(str, layer.stride))}"
    if layer.G > 1:
        text += f", {layer.G} groups"
    if layer.B > 1:
        text += f", batch {layer.B}"
    return text + ("" if layer.kernel else ", no weights")


def unroll_text(nest: Nest) -> str:
    """What the datapath does at once, as ``--unroll`` takes it."""
    return ",".join(f"{dim}{count}" for dim, count in nest.unroll.items() if count > 1)


def level_text(level: Level) -> str:
    """A level's name and sizes: "L1 32.0 KiB"."""
    if level.private_bytes is None:
        return (
            f"{level.name} {format_bytes(level.nbytes(Tensor.INPUT))}{_timing(level)}"
        )
    own = (
        f"{tensor.value} {format_bytes(size)}"
        for tensor, size in level.private_bytes.items()
        if size  # else there is none
    )
    return f"{level.name} ({', '.join(own)}){_timing(level)}"


def _timing(level: Level) -> str:
    halves = " in two halves" if level.double_buffered else ""
    return halves + ", sliding" * level.sliding


def hierarchy_text(hierarchy: Hierarchy) -> str:
    """All levels, innermost first."""
    return ", ".join([*map(level_text, hierarchy.levels), MAIN])


def memory_rows(objective: Objective) -> list[tuple[str, str]]:
    """The memory, or what memories may be chosen: a level a line, if they are long."""
    if isinstance(objective, Fixed):
        hierarchy = objective.hierarchy
        text = f"{hierarchy.name}: {hierarchy_text(hierarchy)}"
        if len(text) <= _SHORT:
            return [("memory", text)]
        levels = [("", level_text(level)) for level in hierarchy.levels]
        return [("memory", f"{hierarchy.name}:"), *levels, ("", MAIN)]
    limit = objective.budget
    within = "" if limit is None else f", {format_bytes(limit)} in all"
    slid = ", the input's sliding" * objective.sliding
    return [("memory", f"each buffer its own{within}{slid}")]


def space_text(space: str) -> str:
    """The nests of a space, in words."""
    return "all nests" if space == "whole" else f"nests of {space}"


def gap(planned: PlannedLayer) -> str:
    """How much less a nest of the search's space may take at most: "1.20 %"."""
    if planned.search.proved_optimal:
        return "0 %"
    return "unknown" if planned.gap is None else format_gap(planned.gap)


def loop_rows(nest: Nest) -> list[tuple[str, str]]:
    """The nest's string, in as many lines as a terminal needs."""
    text = str(nest) or "none: the datapath does all at once"
    if not sys.stdout.isatty():
        return [("loops", text)]
    width = max(shutil.get_terminal_size().columns - _NAMES, _NAMES)
    lines = textwrap.wrap(text, width, break_long_words=False)
    return list(zip(["loops", *[""] * (len(lines) - 1)], lines, strict=True))


def nest_rows(
    found: Evaluation, objective: Objective, mapping: MappingSearch | None = None
) -> list[tuple[str, str]]:
    """What was evaluated, name and value; mapping: how the datapath was chosen."""
    nest, layer = found.nest, found.layer
    rows = [
        ("layer", layer_text(layer)),
        ("MACs", f"{layer.macs:,}"),
        *bits_rows(objective),
        *loop_rows(nest),
        *memory_rows(objective),
    ]
    if mapping is not None:
        rows[2:2] = mapping_rows(nest, mapping)
    elif unroll := unroll_text(nest):
        used = format_share(nest.utilisation)
        rows.insert(2, ("datapath", f"{unroll} at once, {used} of it used"))
    return rows


def mapping_rows(nest: Nest, mapping: MappingSearch) -> list[tuple[str, str]]:
    """The mapping on an array, and what became of the others."""
    used = format_share(array_used(nest, mapping))
    at_once = unroll_text(nest) or "one MAC"
    return [
        ("datapath", f"{at_once} at once, {used} of {mapping.array} used"),
        ("mappings", mapping_text(mapping)),
    ]


def array_used(nest: Nest, mapping: MappingSearch | None) -> float:
    """The part of the multipliers that works; of an array, of all that it has."""
    if mapping is None:
        return nest.utilisation
    return nest.utilisation * mapping.share(nest.unroll)


def mapping_text(mapping: MappingSearch) -> str:
    """What became of all: "best of 8,439: 8 searched, 8,431 no better by bounds"."""
    what = "" if mapping.complete else " that fill a side"
    text = f"best of {mapping.mappings:,}{what}: {mapping.searched:,} searched, "
    text += f"{mapping.pruned:,} no better by bounds"
    return text + f", {mapping.open:,} left open" * bool(mapping.open)


def bits_rows(objective: Objective) -> list[tuple[str, str]]:
    """The elements' bits, where they are not the 16 of the paper."""
    bits = objective.precision
    if bits == Precision():
        return []
    parts = f"input {bits.input}, kernel {bits.kernel}, partial sums {bits.partial}"
    text = f"{parts}, output {bits.output}; multiplied as {bits.multiplier}"
    return [("bits", text)]


def note_if_interrupted(found: Result) -> None:
    """That the search might have found better."""
    if found.interrupted:
        show.note(f"interrupted: {found.nest.layer.name} has the best nest so far")


def warn_of_idle(found: Evaluation, mapping: MappingSearch | None = None) -> None:
    """A warning where most of the datapath has nothing to do."""
    used = array_used(found.nest, mapping)
    if used < _LITTLE:
        unroll = unroll_text(found.nest) or "one MAC"
        on = "" if mapping is None else f" on {mapping.array}"
        show.complaint(
            f"{found.layer.name} uses {100 * used:.3g} % of the datapath "
            f"{unroll}{on}: the rest idles"
        )


def energy_rows(found: Evaluation) -> list[tuple[str, str]]:
    """The totals, with and without what no blocking saves."""

    def both(pj: float) -> str:
        return f"{energy(pj)}, {per_mac(found, pj)}"

    return [
        ("on the chip", format_bytes(found.sram_bytes)),
        ("energy", f"{both(found.total)}, and {found.mac_pj:g} for the MAC"),
        ("compulsory", f"{both(found.compulsory)}: each element once in {MAIN}"),
        ("without it", both(found.without_compulsory)),
    ]


def tables(found: Evaluation, objective: Objective) -> None:
    """Buffers, energies and, if bandwidths are known, ports."""
    show.line("")
    _buffer_table(found, objective)
    show.line("")
    _energy_table(found)
    _time_table(found)


def _buffer_table(found: Evaluation, objective: Objective) -> None:
    """Every buffer: its size, what passes through it, and its level."""
    columns = ["buffer", "elements", "bytes", "reads", "writes"]
    columns += ["fills", "drains", "level"]
    given = isinstance(objective, Fixed)
    rows = [
        [
            placed.name,
            amount((buffer := placed.buffer).elements),
            format_bytes(placed.nbytes),
            *map(amount, (buffer.reads, buffer.writes, buffer.fills, buffer.drains)),
            placed.level if given or placed.level == MAIN else "own",
        ]
        for placed in found.buffers
    ]
    for title, of in (("stripe of", found.swept_by), ("slides on", found.slides_along)):
        loops = [of(placed) for placed in found.buffers]
        if any(loops):
            columns.append(title)
            for row, loop in zip(rows, loops, strict=True):
                row.append("" if loop is None else str(loop))
    show.table("Buffers, from the inside", columns, rows)


def _energy_table(found: Evaluation) -> None:
    """pJ per multiplication by level and tensor."""
    tensors = found.nest.layer.tensors

    def row(name: str, level: str | None) -> list[str]:
        cells = [found.pj(level, tensor) for tensor in tensors]
        total = found.pj(level)
        part = total / found.total if found.total else 0.0
        return [
            name,
            *(f"{found.per_mac(pj):.4f}" if pj else "" for pj in cells),
            f"{found.per_mac(total):.4f}",
            format_share(part),
        ]

    columns = ("level", *(tensor.value for tensor in tensors), "all", "part")
    rows = [row(level, level) for level in found.levels]
    rows.append(row("all", None))
    show.table("Energy, pJ per MAC", columns, rows)


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


def _time_table(found: Evaluation) -> None:
    """Every port, and how long it is busy; nothing where no bandwidth is known."""
    latency = found.latency
    if latency is None or not latency.ports:
        return
    rows = [
        [
            port.level,
            "all" if port.tensor is None else port.tensor.value,
            "reads and writes" if port.way == "both" else port.way,
            amount(port.nbytes),
            f"{port.bandwidth:g}",
            amount(port.cycles),
            format_share(port.cycles / latency.cycles),
        ]
        for port in latency.ports
    ]
    show.line("")
    columns = ["level", "tensor", "port", "bytes", "bytes/cycle", "cycles", "busy"]
    show.table("Time", columns, rows)


def front_table(planned: PlannedLayer, whose: str = "") -> None:
    """The nests between least energy and fewest cycles."""
    front = planned.search.front
    if not front:
        return
    found = planned.evaluation
    rows = [
        [
            f"{point.cycles:,.0f}",
            energy(point.energy),
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


def picture(file: Opened) -> Figure:
    """The picture of the blocking plan in `file`. Raises as `read_plan` does."""
    from memplan.plotting.blocked import blocked

    plan = read_plan(file)
    first = plan.layers[0].evaluation
    title = first.layer.name if len(plan.layers) == 1 else Path(file.path).name
    unroll = unroll_text(first.nest)
    datapath = f"{unroll} at once" if unroll else "one MAC at a time"
    return blocked(plan, title, _facts(plan), f"datapath: {datapath}")


def _facts(plan: BlockingPlan) -> list[str]:
    per_mac = f"{plan.total / plan.macs:.4g} pJ/MAC"
    memory = plan.memory or "each buffer a memory of its own"
    if plan.budget is not None:
        memory += f", {format_bytes(plan.budget)} in all"
    facts = [memory, f"{energy(plan.total)}, {per_mac}"]
    if plan.cycles is not None and all(
        one.evaluation.latency and one.evaluation.latency.bounded for one in plan.layers
    ):
        facts.append(f"{plan.cycles:,.0f} cycles")
    spaces = sorted({one.search.space for one in plan.layers})
    among = f"among {' and '.join(map(space_text, spaces))}"
    minimized = sorted({one.search.minimized for one in plan.layers} - {"energy"})
    least = f" for {' and '.join(minimized)}" if minimized else ""
    proof = f"proved optimal{least} {among}"
    if len(plan.layers) == 1:
        facts.insert(0, layer_text(plan.layers[0].evaluation.layer))
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
    used = [array_used(nest, mapping) for nest, mapping in chosen]
    least, most = format_share(min(used)), format_share(max(used))
    share = least if least == most else f"{least} to {most}"
    return [f"{share} of {chosen[0][1].array} used"]
