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
from memplan.solving.methods import METHOD_NAMES, METHODS
from memplan.solving.options import BEST, MAX_SEED, MIP_SOLVERS, PRIORITIES, Options
from memplan.solving.solve import solve
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
    help="Solver; see below",
)
@click.option(
    "--priority",
    type=click.Choice((*PRIORITIES, BEST)),
    metavar="ORDER",
    help=f"Which buffer --method bestfit places first: {', '.join(PRIORITIES)}; "
    f"{BEST} tries all  [default: {PRIORITIES[0]}, the paper's]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Time limit in seconds  [default: a fixed amount of work]",
)
@click.option(
    "--capacity",
    metavar="BYTES",
    help="Only check whether this much memory, such as 512MiB, is enough. Exits 0 if "
    "it is, 4 if not; writes a plan only with -o.",
)
@click.option(
    "--capacity-of",
    type=click.Choice(get_args(CapacityOf)),
    help="Memory that must fit into --capacity: the planned arena, all live tensors, "
    "or the resident memory of the process (CPU only)  [default: live; arena for a "
    "CSV file]",
)
@arguments.threads("Number of threads  [default: one per core]")
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    metavar="N",
    help="Random seed",
)
@click.option(
    "--mip-solver",
    type=click.Choice(MIP_SOLVERS),
    help="Solver for --method mip  [default: cbc]",
)
@click.option(
    "--step",
    default="hot",
    show_default=True,
    metavar="N|hot|all",
    help="Step to plan: its number, hot for the one that repeats, or all for the "
    "whole run",
)
@click.option(
    "--alignment",
    type=click.IntRange(1, MAX_ALIGNMENT),
    help="Alignment of offsets in bytes  [default: the trace's own]",
)
@arguments.output(
    "Plan file: Parquet if it ends in .parquet, else JSON; - for standard output  "
    "[default: TRACE.plan.json, or .plan.parquet for 100,000 buffers or more]"
)
@arguments.force("the plan if it exists")
@arguments.device
@arguments.json_
def command(
    trace: Path,
    method: str,
    priority: str | None,
    time_limit: float | None,
    capacity: str | None,
    capacity_of: CapacityOf | None,
    threads: int | None,
    seed: int,
    mip_solver: str | None,
    step: str,
    alignment: int | None,
    output: Path | None,
    force: bool,
    device: int | None,
    json_: bool,
) -> None:
    """Plan the memory of TRACE: an offset for every buffer of its hot step.

    TRACE is a recorded trace, a memory snapshot of torch.cuda, or a MiniMalloc CSV
    file. The hot step is the one that repeats. The plan includes a lower bound: no
    plan can have a lower peak. On Ctrl-C, memplan writes the best plan so far and
    exits 0.

    \b
    Example: memplan solve train.parquet -o train.plan.json
    """
    if priority is not None and method != "bestfit":
        raise UsageError("--priority is for --method bestfit only; leave it out")
    if mip_solver is not None and method != "mip":
        raise UsageError("--mip-solver is for --method mip only; leave it out")
    if capacity_of is not None and capacity is None:
        raise UsageError("--capacity-of is for --capacity; give that, too")
    options = Options(
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        mip_solver=mip_solver or MIP_SOLVERS[0],
        priority=priority or PRIORITIES[0],
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
    if violations:
        raise MemplanError(
            f"internal error: the plan does not verify: {violations[0].message}"
        )
    return plan


def _is_large(given: Trace | Problem) -> bool:
    return isinstance(given, Problem) and len(given) >= MANY_BUFFERS


def _default_output(trace: Path) -> Path:
    name = trace.name
    for suffix in (".parquet", ".json.gz", ".json", ".csv"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.plan.json")
