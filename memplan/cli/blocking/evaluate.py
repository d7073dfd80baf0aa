"""memplan blocking evaluate"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.blocking.cost.timed_memories import check_minimized
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.search.timed import evaluation_of
from memplan.cli import show
from memplan.cli.blocking import meanings, options, report
from memplan.cli.blocking.report import time_rows, time_table
from memplan.cli.blocking.results import case_entries


@click.command("evaluate")
@options.layer
@options.string
@options.memory(options.OWN)
@options.unroll
@options.budget
@options.precision
@options.sliding
@options.minimize("Buffers go into the memories that need the least of it.")
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
    minimize: str,
    json_: bool,
) -> None:
    """Count the accesses of one loop nest, and the energy that they take.

    memplan chooses which buffers to keep, and in which memories, so that they take
    the least energy together. optimize does the same, so its nests have the same
    energy here. Idle multipliers cost no energy. --json also prints the paper's own
    count.

    \b
    Example: memplan blocking evaluate --layer conv5 \\
      --string "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512" --memory diannao
    """
    layer = parse_layer(layer_text)
    nest = parse_nest(string, layer, meanings.datapath(unroll))
    objective = meanings.machine(memory, budget, bits, technology, sliding)
    check_minimized(minimize, objective)
    if json_:
        show.as_json(case_entries(layer, nest, objective, minimize))
        return
    found = evaluation_of(layer, nest, objective, minimize)
    report.warn_of_idle(found)
    rows = report.nest_rows(found, objective)
    rows += [*report.energy_rows(found), *time_rows(found)]
    show.facts(f"memplan: {layer.name}", rows)
    show.line("")
    report.buffer_table(found, objective)
    show.line("")
    report.energy_table(found)
    time_table(found)
