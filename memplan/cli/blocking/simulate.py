"""memplan blocking simulate"""

from __future__ import annotations

import click

from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.run.cache import MAX_MACS, Simulation, simulate
from memplan.cli import show
from memplan.cli.blocking import meanings, options, report
from memplan.cli.blocking.results import layer_entry
from memplan.cli.progress import working


@click.command("simulate")
@options.layer
@options.string
@click.option(
    "--cache",
    default="xeon-e5645",
    show_default=True,
    metavar="NAME|FILE",
    help="A cache hierarchy: a name or a file with bytes, ways and line for every "
    "level.",
)
@options.unroll
@options.pad
@click.option(
    "--max-macs",
    type=click.IntRange(min=1),
    default=MAX_MACS,
    show_default=True,
    metavar="N",
    help="Largest number of multiply-adds to simulate. For a larger layer, memplan "
    "simulates only the first iterations of the outermost loops.",
)
@options.json_
def command(
    layer_text: str,
    string: str,
    cache: str,
    unroll: str,
    pad: bool,
    max_macs: int,
    json_: bool,
) -> None:
    """Count the cache misses of a loop nest with simulated caches.

    memplan prints the misses beside those that its model predicts, and beside those
    of im2col with a blocked matrix product. Elements are 4-byte floats; caches
    evict the least recently used line. If planes of a tensor share cache sets,
    memplan prints a note; --pad moves them apart.

    \b
    Example: memplan blocking simulate --layer conv5 --unroll none \\
      --string "Fw3 Fh3 C32 K8 X28 Y4 K128 C256 Y28 K512"
    """
    layer = parse_layer(layer_text)
    nest = parse_nest(string, layer, meanings.datapath(unroll))
    hierarchy = load_hierarchy(cache)
    with working("simulating"):
        found = simulate(layer, nest, hierarchy, pad=pad, max_macs=max_macs)
    if json_:
        show.as_json(_entries(found))
        return
    rows = [
        ("layer", report.layer_text(layer)),
        *report.loop_rows(found.nest),
        (
            "register",
            f"{report.unroll_text(dict(found.nest.unroll)) or 'one MAC'} at once",
        ),
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
        rows.append(
            [
                own.name,
                report.amount(own.accesses),
                report.amount(own.misses),
                report.amount(expected),
                report.ratio(own.misses, expected),
                report.amount(other.accesses),
                report.ratio(other.accesses, own.accesses),
            ]
        )
    title = "References: elements at the innermost level, lines at the others"
    show.table(title, columns, rows)


def _entries(found: Simulation) -> dict[str, object]:
    return {
        "schema": "memplan.blocking-simulation",
        "version": 1,
        "layer": layer_entry(found.layer),
        "string": str(found.nest),
        "unroll": dict(found.nest.unroll),
        "share": found.share,
        "levels": [
            {
                "name": own.name,
                "accesses": own.accesses,
                "misses": own.misses,
                "writebacks": own.writebacks,
                "expected_misses": expected,
                "gemm_accesses": other.accesses,
                "gemm_misses": other.misses,
            }
            for own, other, expected in zip(
                found.blocked, found.gemm, found.expected, strict=True
            )
        ],
        "aliasing": [
            {
                "tensor": alias.tensor.value,
                "stride_bytes": alias.stride,
                "level": alias.level,
                "sets": alias.sets,
            }
            for alias in found.aliasing
        ],
    }
