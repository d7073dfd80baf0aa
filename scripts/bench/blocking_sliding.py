"""What memories of the input that shift are worth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench import blocking_data as data
from bench.against_zigzag import MEMORIES, private
from bench.blocking_page import Page
from bench.json_lines import Record
from bench.zigzag_layers import cases
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import Layer
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result

_LARGE = 8 << 20  # bytes
_SECONDS = 60.0


def section(page: Page, records: Sequence[Record]) -> None:
    """On DianNao's memories, within 8 MB, and beside ZigZag's."""
    page.say("## Memories that shift (section 4.2)")
    page.say(
        "The paper's smallest memories are registers that shift: as the window moves "
        "on along a row, only the new column is loaded. `--sliding`, or `sliding = "
        "true` of a level, gives the input such buffers: they have the size of the "
        "tile and are filled as a stripe is. Without it a stripe has to be held whole, "
        "which DianNao's 2 KB are too small for. Elsewhere on this page nothing "
        "slides. [hierarchies.md](hierarchies.md) says what a sliding buffer is. "
        "pJ/MAC; the nests are those with `--sliding`."
    )
    page.table(
        "layer | DianNao | sliding | ratio | 8 MB | sliding | ratio "
        "| nest on DianNao's memories",
        [_row(layer) for layer in data.CONVOLUTIONS],
    )
    page.say(
        "\\* best found, not proved optimal among all nests. Memories made to measure "
        "can hold a stripe, so that little is left for sliding."
    )
    page.say(
        "The layers of the table beside ZigZag whose windows overlap, on the same "
        "memories, all of which may slide. ZigZag 3.9.1 does not: it "
        "ignores, as its code says, the input's FIFO effect. So its figures are of the "
        "machine without."
    )
    rows = list(_beside(records))
    columns = " | ".join(f"{name}: memplan | sliding | ratio" for name in MEMORIES)
    page.table(f"layer | {columns}", [cells for cells, _ in rows])
    for place, name in enumerate(MEMORIES):
        gains = [ratios[place] for _, ratios in rows]
        theirs = [ratios[place + len(MEMORIES)] for _, ratios in rows]
        page.say(
            f"{name} KiB: sliding / not, geometric mean "
            f"{statistics.geometric_mean(gains):.3f}, least {min(gains):.3f}; sliding "
            f"/ ZigZag's, geometric mean {statistics.geometric_mean(theirs):.3f}."
        )


def _best(layer: Layer, unroll: Mapping[str, int], machine: Objective) -> Result:
    return optimize(layer, unroll, machine, Options(time_limit=_SECONDS))


def _per_mac(layer: Layer, found: Result) -> str:
    return f"{found.energy / layer.macs:.3f}" + " *" * (not found.proved)


def _row(layer: Layer) -> tuple[str, ...]:
    hierarchy = load_hierarchy("diannao")
    pairs: tuple[tuple[Objective, Objective], ...] = (
        (Fixed(hierarchy), Fixed(hierarchy.slid())),
        (Codesign(budget=_LARGE), Codesign(budget=_LARGE, sliding=True)),
    )
    cells, nests = [layer.name], []
    for pair in pairs:
        plain, slid = (_best(layer, data.UNROLL, machine) for machine in pair)
        cells += [_per_mac(layer, plain), _per_mac(layer, slid)]
        cells.append(f"{slid.energy / plain.energy:.3f}")
        nests.append(slid.nest)
    return (*cells, f"`{nests[0]}`")


def _beside(
    records: Sequence[Record],
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """A row of each layer, and its ratios: to the same machine where nothing slides,
    and to ZigZag's energy, of all memories each."""
    known = {(one["memories"], one["network"], one["layer"]): one for one in records}
    for network, layer, unroll in cases():
        if not any(
            window > step
            for window, step in zip((layer.Fw, layer.Fh), layer.stride, strict=True)
        ):
            continue
        cells, gains, theirs = [f"{network}, {layer.name}"], [], []
        for name, sizes in MEMORIES.items():
            record = known[name, network, layer.name]
            found = _best(layer, unroll, Fixed(private(sizes).slid()))
            gains.append(found.energy / record["pj"])
            theirs.append(found.energy / record["zigzag_pj"])
            cells += [f"{record['pj'] / layer.macs:.3f}", _per_mac(layer, found)]
            cells.append(f"{gains[-1]:.3f}")
        yield tuple(cells), (*gains, *theirs)
