"""memplan blocking evaluate"""

from __future__ import annotations

import click

from memplan.blocking.cost.objective import Objective
from memplan.blocking.cost.timed_memories import check_minimized
from memplan.blocking.nest.nest import Nest
from memplan.blocking.search.timed import evaluation_of
from memplan.cli import show
from memplan.cli.blocking import options, report
from memplan.cli.blocking.results import case_entries


@click.command("evaluate")
@options.nest
@options.machine(options.OWN)
@options.minimize("Buffers go into the memories that need the least of it.")
@options.json_
def command(nest: Nest, objective: Objective, minimize: str, json_: bool) -> None:
    """Count the accesses of one loop nest, and the energy that they take.

    memplan chooses which buffers to keep, and in which memories, so that they take
    the least energy together. optimize does the same, so its nests have the same
    energy here. Idle multipliers cost no energy. --json also prints the paper's own
    count.

    \b
    Example: memplan blocking evaluate --layer conv5 \\
      --string "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512" --memory diannao
    """
    check_minimized(minimize, objective)
    if json_:
        entries = case_entries(nest, objective, minimize)
        show.as_json(entries, "memplan.blocking-evaluation")
        return
    found = evaluation_of(nest.layer, nest, objective, minimize)
    report.warn_of_idle(found)
    rows = report.nest_rows(found, objective)
    rows += [*report.energy_rows(found), *report.time_rows(found)]
    show.facts(f"memplan: {nest.layer.name}", rows)
    report.tables(found, objective)
