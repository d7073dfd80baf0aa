"""memplan blocking simulate"""

from __future__ import annotations

import click

from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.nest import Nest
from memplan.blocking.run.cache import MAX_MACS, Simulation, simulate
from memplan.cli import show
from memplan.cli.blocking import options, report
from memplan.cli.blocking.results import nest_entries
from memplan.cli.progress import working


@click.command("simulate")
@options.nest
@options.cache(
    "A cache hierarchy: a name or a file with bytes, ways and line for every level."
)
@options.pad
@click.option(
    "--max-macs",
    type=click.IntRange(min=1),
    default=MAX_MACS,
    metavar="N",
    help="Largest number of multiply-adds to simulate. For a larger layer, memplan "
    "simulates only the first iterations of the outermost loops.",
)
@options.json_
def command(nest: Nest, cache: str, pad: bool, max_macs: int, json_: bool) -> None:
    """Count the cache misses of a loop nest with simulated caches.

    memplan prints the misses beside those that its model predicts, and beside those
    of im2col with a blocked matrix product. Elements are 4-byte floats; caches
    evict the least recently used line. If planes of a tensor share cache sets,
    memplan prints a note; --pad moves them apart.

    \b
    Example: memplan blocking simulate --layer conv5 --unroll none \\
      --string "Fw3 Fh3 C32 K8 X28 Y4 K128 C256 Y28 K512"
    """
    layer, hierarchy = nest.layer, load_hierarchy(cache)
    with working("simulating"):
        found = simulate(layer, nest, hierarchy, pad=pad, max_macs=max_macs)
    if json_:
        show.as_json(_entries(found), "memplan.blocking-simulation")
        return
    rows = [("layer", report.layer_text(layer)), *report.loop_rows(found.nest)]
    rows += [
        ("register", f"{report.unroll_text(found.nest) or 'one MAC'} at once"),
        ("caches", f"{hierarchy.name}: {report.hierarchy_text(hierarchy)}"),
    ]
    if found.share < 1:
        part = f"{report.layer_text(found.layer)}: {found.share:.1%} of the MACs"
        rows.insert(1, ("simulated", part.replace("%", " %")))
    show.facts(f"memplan: {layer.name}", rows)
    show.line("")
    _table(found)
    for alias in found.aliasing:
        show.note(str(alias) + ("" if pad else " with --pad"))


def _table(found: Simulation) -> None:
    columns = ["level", "accesses", "misses", "model", "misses/model"]
    columns += ["GEMM accesses", "GEMM/blocked"]
    rows = []
    levels = zip(found.blocked, found.gemm, found.expected, strict=True)
    for own, other, expected in levels:
        counts = own.accesses, own.misses, expected
        row = [own.name, *map(report.amount, counts), _ratio(own.misses, expected)]
        more = _ratio(other.accesses, own.accesses)
        rows.append([*row, report.amount(other.accesses), more])
    title = "References: elements at the innermost level, lines at the others"
    show.table(title, columns, rows)


def _ratio(one: float, other: float) -> str:
    """`one` in parts of `other`: "1.58"; nothing where that is nought."""
    return f"{one / other:.2f}" if other else ""


def _entries(found: Simulation) -> dict[str, object]:
    levels = zip(found.blocked, found.gemm, found.expected, strict=True)
    return {
        **nest_entries(found.nest, found.layer),
        "share": found.share,
        "levels": [
            {
                **show.picked(own, "name", "accesses", "misses", "writebacks"),
                "expected_misses": expected,
                "gemm_accesses": other.accesses,
                "gemm_misses": other.misses,
            }
            for own, other, expected in levels
        ],
        "aliasing": [
            show.picked(alias, "tensor", "level", "sets", stride_bytes="stride")
            for alias in found.aliasing
        ],
    }
