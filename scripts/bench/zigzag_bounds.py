"""What no nest goes below on the memories of the table beside ZigZag, and why."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.against_zigzag import MEMORIES, private
from bench.blocking_page import Page
from bench.json_lines import Record
from bench.zigzag_layers import cases
from memplan.blocking.cost.evaluation import Evaluation, best_evaluation
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.cost.pricing import MAIN
from memplan.blocking.nest.nest import parse_nest

_GOAL = 0.7


@dataclass(frozen=True)
class _Row:
    """One layer on one hierarchy: energies in parts of ZigZag's, and where the least
    one goes, in parts of itself."""

    network: str
    ratio: float
    bound: float
    compulsory: float
    shares: tuple[float, ...]  # compulsory, the rest of main memory, each level


def section(page: Page, records: Sequence[Record]) -> None:
    """A table of bounds, and what follows from it."""
    page.say("### What no nest goes below")
    known = {(one["memories"], one["network"], one["layer"]): one for one in records}
    tables: dict[str, list[_Row]] = {}
    for name, sizes in MEMORIES.items():
        machine = Fixed(private(sizes))
        for network, layer, unroll in cases():
            record = known[name, network, layer.name]
            nest = parse_nest(record["nest"], layer, unroll)
            found = best_evaluation(layer, nest, machine)
            tables.setdefault(name, []).append(_row(network, record, found))
    rows = []
    for name, own in tables.items():
        networks = list(dict.fromkeys(one.network for one in own))
        for network in (*networks, "all"):
            some = [one for one in own if network in (one.network, "all")]
            rows.append((f"{name}, {network}", *_cells(some)))
    page.say(
        "memplan's energies and its lower bounds, which no nest at all takes less than "
        "in its model, on these memories and with these 16 x 16 channels, in parts of "
        "ZigZag's, as geometric means; and so each element's one access to main "
        "memory. Then where memplan's energy goes, as a mean over the layers: these "
        "accesses, further ones to main memory, and the memories on the chip."
    )
    page.table(
        "memories, network | energy | bound | compulsory | of it compulsory "
        "| other DRAM | on the chip",
        rows,
    )
    page.say(_conclusion(*list(tables.items())[-1]))


def _row(network: str, record: Record, found: Evaluation) -> _Row:
    theirs, main = record["zigzag_pj"], found.pj(MAIN)
    parts = found.compulsory, main - found.compulsory, found.total - main
    return _Row(
        network,
        record["pj"] / theirs,
        min(record["bound_pj"], record["pj"]) / theirs,
        found.compulsory / theirs,
        tuple(part / found.total for part in parts),
    )


def _cells(rows: Sequence[_Row]) -> tuple[str, ...]:
    means = (
        _mean(one.ratio for one in rows),
        _mean(one.bound for one in rows),
        _mean(one.compulsory for one in rows),
    )
    shares = [
        statistics.mean(own) for own in zip(*(r.shares for r in rows), strict=True)
    ]
    return (*(f"{own:.3f}" for own in means), *(f"{100 * own:.0f} %" for own in shares))


def _mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def _conclusion(name: str, rows: Sequence[_Row]) -> str:
    bound, compulsory = (
        _mean(one.bound for one in rows),
        _mean(one.compulsory for one in rows),
    )
    if bound <= _GOAL:
        return f"On {name} KiB {_GOAL} x ZigZag's energy is within the bounds."
    return (
        f"So on {name} KiB no search can come to {_GOAL} x ZigZag's energy: nests of "
        f"the bounds' energies would be at {bound:.3f}. Compulsory accesses alone are "
        f"{compulsory:.3f} of it, and what they leave of {_GOAL} is less than the "
        "memories on the chip and the refetches from main memory take at best. On such "
        "memories ZigZag's mappings are near what can be had; what would help is what "
        "the comparison holds fixed: another spatial mapping, fewer bits, layers that "
        "hand their tiles on, or memories that shift."
    )
