"""memplan solve"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from memplan.cli import arguments, capacities, show, solve_report
from memplan.cli.progress import progress_line
from memplan.core.plan import Plan, Source
from memplan.core.planfile import MANY_BUFFERS, PARQUET, write_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import MemplanError, NoPlanError, UsageError
from memplan.files import refuse_overwrite
from memplan.formats.sniff import sniff
from memplan.solving.capacity import CapacityOf, room_for, solve_within
from memplan.solving.exact_ladder import RULES
from memplan.solving.methods import METHODS
from memplan.solving.options import MAX_SEED, MIP_SOLVERS, Options
from memplan.solving.solve import METHOD_NAMES, solve
from memplan.text import name_as_text
from memplan.trace.trace import Trace
from memplan.units import parse_bytes

_METHODS_HELP = "\b\nMethods:\n" + "\n".join(
    f"  {name}\n    {method.summary}" for name, method in METHODS.items()
)
MAX_ALIGNMENT = 1 << 40  # bytes


@click.command("solve", epilog=_METHODS_HELP)
@arguments.existing("trace")
@click.option(
    "--method",
    type=click.Choice(METHOD_NAMES),
    default="auto",
    show_default=True,
    metavar="METHOD",
    help="How to place the buffers; see below.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds to solve.  [default: some, and the same plan each time]",
)
@click.option(
    "--capacity",
    metavar="BYTES",
    help="Ask only whether it fits into this, as in 512MiB: 0 yes, 4 no. A plan is "
    "written where -o names one.",
)
@click.option(
    "--capacity-of",
    type=click.Choice(get_args(CapacityOf)),
    help="What has to fit: the planned arena alone; with all else of tensors that is "
    "live; or the process, measured on a CPU.  [default: live; arena of a CSV file]",
)
@arguments.threads("How many.  [default: one a core]")
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    metavar="N",
    help="Of random choices.",
)
@click.option(
    "--mip-solver",
    type=click.Choice(MIP_SOLVERS),
    help="Who solves for --method mip.  [default: cbc]",
)
@click.option(
    "--without",
    type=click.Choice(RULES),
    multiple=True,
    metavar="RULE",
    help=f"A pruning rule that --method exact does without: {', '.join(RULES)}.",
)
@click.option(
    "--step",
    default="hot",
    show_default=True,
    metavar="N|hot|all",
    help="Which step to plan: a number, the one that repeats, or the whole run.",
)
@click.option(
    "--alignment",
    type=click.IntRange(1, MAX_ALIGNMENT),
    help="Bytes that offsets are multiples of.  [default: the trace's own]",
)
@arguments.output(
    "The plan: Parquet if it ends in .parquet, else JSON; - is standard output.  "
    "[default: TRACE.plan.json, or .plan.parquet for 100,000 buffers or more]"
)
@arguments.force("the plan if it exists")
@arguments.device
@arguments.json_
def command(
    trace: Path,
    method: str,
    time_limit: float | None,
    capacity: str | None,
    capacity_of: CapacityOf | None,
    threads: int | None,
    seed: int,
    mip_solver: str | None,
    without: tuple[str, ...],
    step: str,
    alignment: int | None,
    output: Path | None,
    force: bool,
    device: int | None,
    json_: bool,
) -> None:
    """Plan the memory of TRACE: an offset for every buffer of its hot step.

    TRACE is a recorded trace, a memory snapshot of torch.cuda, or a MiniMalloc CSV
    file. The plan says how good it is: its lower bound is what no plan can do with
    less than. Ctrl-C writes the best plan so far, and that is a success.

    \b
    Example: memplan solve train.parquet -o train.plan.json
    """
    _check(method, mip_solver, without, capacity, capacity_of)
    options = Options(
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        mip_solver=mip_solver or MIP_SOLVERS[0],
        without=without,
    )
    most = None if capacity is None else parse_bytes(capacity)
    # A question is answered; a file is for whoever names one.
    path = output or (_default_output(trace) if most is None else None)
    if path is not None:
        refuse_overwrite(path, force)
    with sniff(trace) as file:
        given = arguments.read_input(file, "size", device=device)
        source = Source(name_as_text(trace.name), file.sha256(), step)
    if output is None and path is not None and _is_large(given):
        path = path.with_suffix(PARQUET)
        refuse_overwrite(path, force)
    room = None
    start = time.perf_counter()

    def attempt(options: Options) -> Plan:
        return _solve(given, method, options, alignment, source)

    try:
        if most is None:
            plan = attempt(options)
        else:
            room = room_for(given, most, capacity_of, step)
            plan = solve_within(room, options, attempt)
    except NoPlanError as error:
        if json_ and most is not None:
            seconds = time.perf_counter() - start
            # Without a step that repeats, what lies outside of it is not known.
            asked = {"capacity": most, "capacity_of": capacity_of or "live"}
            compared = asked if room is None else capacities.entries(room)
            failed = capacities.no_plan_entries(error, method, compared, seconds)
            show.as_json(failed | {"seed": seed})
        raise
    if plan.provenance.note:
        show.note(f"{method}: {plan.provenance.note}")
    if path is not None:
        write_plan(plan, path, force=force)
    solve_report.tell(plan, given, path, room, json_)


def _check(
    method: str,
    mip_solver: str | None,
    without: tuple[str, ...],
    capacity: str | None,
    capacity_of: CapacityOf | None,
) -> None:
    """Refuse options that are for others which were not given."""
    if mip_solver is not None and method != "mip":
        raise UsageError("--mip-solver is for --method mip only; leave it out")
    if without and method != "exact":
        raise UsageError("--without is for --method exact only; leave it out")
    if capacity_of is not None and capacity is None:
        raise UsageError("--capacity-of is for --capacity; give that, too")


def _solve(
    given: Trace | Problem,
    method: str,
    options: Options,
    alignment: int | None,
    origin: Source,
) -> Plan:
    """A plan that verifies."""
    with progress_line(method) as progress:
        plan = solve(
            given,
            method,
            step=origin.step,
            alignment=alignment,
            origin=origin,
            options=replace(options, progress=progress),
        )
    violations = verify(plan)
    if violations:  # a bug of ours: never let it out of the door
        raise MemplanError(f"the plan found does not verify: {violations[0].message}")
    return plan


def _is_large(given: Trace | Problem) -> bool:
    return isinstance(given, Problem) and len(given) >= MANY_BUFFERS


def _default_output(trace: Path) -> Path:
    name = trace.name
    for suffix in (".parquet", ".json.gz", ".json", ".csv"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.plan.json")
