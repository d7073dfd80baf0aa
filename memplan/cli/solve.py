"""memplan solve"""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from memplan.cli import arguments, capacities, outlooks, show
from memplan.cli.progress import progress_line
from memplan.core.plan import UNMARKED, Plan, Source
from memplan.core.planfile import MANY_BUFFERS, PARQUET, write_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import MemplanError, NoPlanError, UsageError
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.sniff import sniff
from memplan.solving.capacity import CapacityOf, Room, room_for, solve_within
from memplan.solving.exact_ladder import RULES
from memplan.solving.methods import METHODS
from memplan.solving.options import MAX_SEED, MIP_SOLVERS, Options
from memplan.solving.outlook import outlook
from memplan.solving.solve import METHOD_NAMES, solve
from memplan.text import name_as_text
from memplan.trace.trace import Trace
from memplan.units import format_bytes, format_gap, format_seconds, parse_bytes

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
        given = arguments.read_input(file, device=device)
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
    _tell(plan, given, path, room, json_)


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


def _tell(
    plan: Plan,
    given: Trace | Problem,
    path: Path | None,
    room: Room | None,
    json_: bool,
) -> None:
    """What was found, what it will bring, and what to do next; path: of the plan."""
    found = None
    with contextlib.suppress(KeyboardInterrupt):  # the plan is there all the same
        found = outlook(given, plan) if isinstance(given, Trace) else None
    if json_:
        compared = {} if room is None else capacities.entries(room)
        show.as_json(_entries(plan, path) | compared | outlooks.entries(found))
    else:
        title = "it fits" if path is None else f"planned {path}"
        rows = _rows(plan) + capacities.rows(room, plan) + outlooks.rows(found)
        show.facts(f"memplan: {title}", rows)
    if found is not None:
        outlooks.warn(plan, found)
    if json_ or path == STDOUT:
        return
    if path is None:
        capacities.tell_unwritten()
    else:
        show.line(f"  next: memplan {_next(given, path)}")


def _is_large(given: Trace | Problem) -> bool:
    return isinstance(given, Problem) and len(given) >= MANY_BUFFERS


def _default_output(trace: Path) -> Path:
    name = trace.name
    for suffix in (".parquet", ".json.gz", ".json", ".csv"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.plan.json")


def _entries(plan: Plan, path: Path | None) -> dict[str, object]:
    return {
        "schema": "memplan.solve-result",
        "version": 1,
        "method": plan.provenance.method,
        "buffers": len(plan.problem),
        "lower_bound": plan.lower_bound,
        "peak": plan.peak,
        "gap": plan.gap,
        "status": plan.status,
        "seconds": plan.provenance.seconds,
        "seed": plan.provenance.seed,
        "elastic": plan.elastic,
        "kinds": len(plan.kinds),
        "arena_bytes": plan.arena_bytes,
        "plan": None if path is None else str(path),
    }


def _rows(plan: Plan) -> list[tuple[str, str]]:
    proof = ", proved optimal" if plan.proved_optimal and len(plan.problem) else ""
    rows = [
        (
            "method",
            f"{plan.provenance.method}, {format_seconds(plan.provenance.seconds)}",
        ),
        ("buffers", f"{len(plan.problem):,}"),
        ("peak", format_bytes(plan.peak)),
        ("lower bound", format_bytes(plan.lower_bound)),
        ("gap", format_gap(plan.gap) + proof),
    ]
    if plan.elastic:
        rows.insert(1, ("steps", "alike but for their sizes: planned for the largest"))
    if plan.lanes:
        arena = format_bytes(plan.arena_bytes)
        many = f"{plan.lanes:,} at a time, each in an arena of its own"
        rows.append(("threads", f"{many}: {arena} together"))
    if plan.provenance.program.marks == UNMARKED:
        rows.append(("loop", "not marked: found in the sequence of requests"))
    if plan.kinds:
        steps = sum(kind.seen for kind in plan.kinds)
        arena = format_bytes(plan.arena_bytes)
        rows.append(
            ("other steps", f"{steps:,} of {len(plan.kinds):,} kinds, arena {arena}")
        )
    if plan.warmup is not None and plan.hot.requests is not None:
        rows.append(
            ("warm-up", f"{len(plan.warmup.problem):,} buffers in the same arena")
        )
    return rows


def _next(given: Trace | Problem, plan: Path) -> str:
    """What a user will want to do with the plan."""
    if isinstance(given, Problem):
        return f"plot {shlex.quote(str(plan))} -o packing.png"
    return shlex.join(["apply", str(plan), *(given.info.argv or ("SCRIPT",))])
