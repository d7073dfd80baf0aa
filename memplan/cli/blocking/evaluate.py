"""memplan blocking evaluate"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.blocking.cost.evaluation import Evaluation, evaluate
from memplan.blocking.cost.timed_memories import check_minimized
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.search.timed import evaluation_of
from memplan.cli import show
from memplan.cli.blocking import meanings, options, report
from memplan.cli.blocking.entries import case_entries
from memplan.cli.blocking.timing import time_rows, time_table
from memplan.errors import UsageError

_COUNTING = {
    "exact": "exact",
    "paper": "the paper's Table 2 and equation 1",
    "both": "exact; below, beside the paper's Table 2 and equation 1",
}


@click.command("evaluate")
@options.layer
@options.string
@options.memory(options.OWN)
@options.unroll
@options.budget
@options.precision
@options.sliding
@click.option(
    "--counting",
    type=click.Choice(("exact", "paper", "both")),
    default="exact",
    show_default=True,
    help="Exactly, as the paper's Table 2 and equation 1 do, or side by side.",
)
@options.minimize("Of the memories those are taken that need the least of it.")
@options.json_
def command(
    layer_text: str,
    string: str,
    memory: str | None,
    unroll: str,
    budget: str | None,
    bits: str | None,
    technology: Path | None,
    sliding: bool,
    counting: str,
    minimize: str,
    json_: bool,
) -> None:
    """Count the accesses of one loop nest, and the energy that they take.

    Of the buffers those are kept, in the memories, that together take the least, as
    optimize does; so a nest from there has the same energy here. Lanes of the datapath
    that idle cost nothing. JSON holds both ways of counting.

    \b
    Example: memplan blocking evaluate --layer conv5 \\
      --string "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512" --memory diannao
    """
    if counting == "paper" and minimize != "energy":
        raise UsageError("--counting paper has no cycles to minimize")
    if counting == "paper" and sliding:
        raise UsageError("--counting paper knows no buffers that slide")
    layer = parse_layer(layer_text)
    nest = parse_nest(string, layer, meanings.datapath(unroll))
    objective = meanings.machine(memory, budget, bits, technology, sliding)
    check_minimized(minimize, objective)
    if json_:
        show.as_json(case_entries(layer, nest, objective, minimize))
        return
    if counting == "paper":
        found = evaluate(layer, nest, objective, as_paper=True)
    else:
        found = evaluation_of(layer, nest, objective, minimize)
    report.warn_of_idle(found)
    rows = [*report.nest_rows(found, objective), ("counting", _COUNTING[counting])]
    rows += [*report.energy_rows(found), *time_rows(found)]
    show.facts(f"memplan: {layer.name}", rows)
    show.line("")
    if counting == "both":
        _side_by_side(found, evaluate(layer, nest, objective, as_paper=True))
        return
    report.buffer_table(found, objective)
    show.line("")
    report.energy_table(found)
    time_table(found)


def _side_by_side(exact: Evaluation, paper: Evaluation) -> None:
    """Accesses and energy of both ways of counting; buffers go by their loops."""
    papers = {(own.tensor, own.buffer.end): own.buffer.reads for own in paper.buffers}
    rows = []
    for placed in exact.buffers:
        real = placed.buffer.reads + placed.buffer.writes
        elements = report.amount(placed.buffer.elements)
        said = papers.get((placed.tensor, placed.buffer.end))
        pair = (
            ["none", ""]
            if said is None
            else [report.amount(said), report.ratio(said, real)]
        )
        rows.append([placed.name, elements, report.amount(real), *pair])
    columns = ["buffer", "elements", "exact", "paper", "paper/exact"]
    show.table("Accesses", columns, rows)
    show.line("")
    totals = [
        (tensor.value, exact.pj(tensor=tensor), paper.pj(tensor=tensor))
        for tensor in exact.nest.layer.tensors
    ]
    totals.append(("all", exact.total, paper.total))
    pair_without = exact.without_compulsory, paper.without_compulsory
    totals.append(("without compulsory", *pair_without))
    show.table(
        "Energy, pJ per MAC",
        ["tensor", "exact", "paper", "paper/exact"],
        [
            [
                name,
                *(f"{exact.per_mac(pj):.4f}" for pj in pair),
                report.ratio(*reversed(pair)),
            ]
            for name, *pair in totals
        ],
    )
