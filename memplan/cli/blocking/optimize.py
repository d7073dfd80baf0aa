"""memplan blocking optimize"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.blocking.machine.registers import target_of
from memplan.blocking.search.result import METHODS, Options
from memplan.blocking.search.spatial import search_datapath
from memplan.cli import arguments
from memplan.cli.blocking import code, meanings, options, results
from memplan.cli.blocking.progress import searching, swept
from memplan.errors import UsageError
from memplan.files import refuse_overwrite

CACHES = "xeon-e5645"


@click.command("optimize")
@options.layers
@options.memory(options.OWN)
@options.budget
@options.precision
@options.sliding
@options.unroll_or_auto
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default=METHODS[0],
    show_default=True,
    help="All nests, with a bound; those whose extents divide each other, with a "
    "proof; the paper's heuristic; all nests of few levels.",
)
@click.option(
    "--levels",
    type=click.IntRange(min=1),
    metavar="N",
    help="Loops a dimension, for beam (4) and enumerate (2); others need no limit.",
)
@options.minimize()
@click.option(
    "--front",
    is_flag=True,
    help="Also list the nests between least energy and fewest cycles that were found; "
    "needs bandwidths, too.",
)
@options.target(
    "--for-code",
    said="Only nests that code for these vectors runs well (memplan blocking emit): "
    "the datapath is a tile of the output in vector registers, --unroll is not used. "
    f"--memory is then {CACHES} if there is none, and --bits {code.BITS}, as the code "
    "has them, whatever a file says.",
)
@options.search
@options.seed
@options.ray
@options.output
@options.json_
def command(
    layer_texts: tuple[str, ...],
    memory: str | None,
    budget: str | None,
    bits: str | None,
    technology: Path | None,
    sliding: bool,
    unroll: str,
    method: str,
    levels: int | None,
    minimize: str,
    front: bool,
    for_code: str | None,
    time_limit: float | None,
    threads: int | None,
    seed: int,
    ray: str | None,
    output: Path | None,
    force: bool,
    json_: bool,
) -> None:
    """Find the loop nest of least energy for a layer, or for several.

    Without --memory every buffer has a memory of its own size, all of them within
    --budget. Loops may have any extents, and the window's may stand anywhere; the
    result says how much less any nest could take at most, or that none does. The method
    divisors proves its optimum among nests whose extents divide each other and whose
    window is in one piece. Without --time-limit a layer takes ten seconds at most on
    two cores. Ctrl-C keeps the best nest so far, and what is known of its gap; it ends
    divisors, and searches for several layers, without a result.

    --minimize cycles and edp need bandwidths in the hierarchy's file; such searches
    run several of the others, of four seconds each, and give a bound of their own.
    --unroll auto runs such searches for one spatial mapping after the other, for half a
    minute at most, or --time-limit, and prints how many mappings were searched, ruled
    out by bounds, or neither. Multipliers that idle take no energy here: look at how
    much of the array is used, or minimize cycles.
    --for-code searches three times at most: around a register tile with few channels,
    with more of them, and among all nests on the same tile; the best found of these
    tells its price, and the gap is to all of them.

    \b
    Example: memplan blocking optimize --layer conv4 --memory diannao
    \b
    Example: memplan blocking optimize --layer conv5 --unroll auto:8x32
    """
    if for_code is not None:
        arguments.refuse(
            {"unroll": "--unroll"}, "not for --for-code, whose datapath is a tile"
        )
        for_code = target_of(for_code).name  # this machine's, wherever searches run
        bits = bits or code.BITS
        memory = memory or (CACHES if budget is None else None)
    objective = meanings.machine(memory, budget, bits, technology, sliding)
    if output is not None:
        refuse_overwrite(output, force)
    given = meanings.all_layers(layer_texts)
    how = Options(method, levels, time_limit, threads, seed, minimize, front, for_code)
    tasks = meanings.tasks(given, objective, unroll, how)
    if len(tasks) > 1:
        found = swept("optimize", tasks, threads, ray)
    elif ray is not None:
        raise UsageError("--ray is for several layers; leave it out")
    else:
        task = tasks[0]
        with searching(method) as progress:
            best = search_datapath(task.layer, task.datapath, objective, how, progress)
            found = [best]
    plan = results.planned(given, found, objective)
    results.hand_over(
        plan,
        objective,
        output=output,
        force=force,
        json_=json_,
        more={"for_code": code.entries(found, for_code)} if for_code else None,
        rows=code.rows(given, found, for_code) if for_code else (),
    )
    if for_code is not None and not json_:
        code.say_next(found, layer_texts, memory, objective, for_code)
