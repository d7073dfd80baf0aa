"""memplan solve"""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from memplan.cli import arguments, show
from memplan.cli.progress import progress_line
from memplan.core.plan import UNMARKED, Plan, Source
from memplan.core.planfile import MANY_BUFFERS, PARQUET, write_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import InfeasibleError, MemplanError, NoPlanError, UsageError
from memplan.files import STDOUT, refuse_overwrite
from memplan.formats.plain import plain
from memplan.formats.sniff import sniff
from memplan.solving.capacity import CapacityOf, Room, room_for, solve_within
from memplan.solving.methods import METHOD_NAMES, METHODS
from memplan.solving.options import BEST, MAX_SEED, MIP_SOLVERS, PRIORITIES, Options
from memplan.solving.outlook import Outlook, outlook
from memplan.solving.solve import solve
from memplan.text import name_as_text
from memplan.trace.modelled import EXPANDABLE
from memplan.trace.trace import Trace
from memplan.units import format_bytes, format_gap, format_seconds, parse_bytes

if TYPE_CHECKING:
    from memplan.cli.budget import Budgeted

_METHODS_HELP = "\b\nMethods:\n" + "\n".join(
    f"  {name}\n    {method.summary}" for name, method in METHODS.items()
)
MAX_ALIGNMENT = 1 << 40  # bytes
COVERED = 0.5  # of a trace's peak: a hot step that holds less of it is worth a word
_LEFT_OUT = {
    "arena": "all that is not in the plan",
    "live": "the rest of the process: libraries, kernels' workspaces, fragmentation",
    "process": "nothing that the recording measured",
}


def _options(
    method: str,
    priority: str | None,
    time_limit: float | None,
    threads: int | None,
    seed: int,
    mip_solver: str | None,
) -> Options:
    """Raises UsageError for an option that has no effect."""
    for flag, value, only in (
        ("--priority", priority, "bestfit"),
        ("--mip-solver", mip_solver, "mip"),
    ):
        if value is not None and method != only:
            raise UsageError(f"{flag} is for --method {only} only; leave it out")
    return Options(
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        mip_solver=mip_solver or MIP_SOLVERS[0],
        priority=priority or PRIORITIES[0],
    )


@click.command("solve", epilog=_METHODS_HELP)
@arguments.existing("trace")
@arguments.gathered("options", _options)
@click.option(
    "--method",
    type=click.Choice(METHOD_NAMES),
    default="auto",
    metavar="METHOD",
    help="Solver; see below",
)
@click.option(
    "--priority",
    type=click.Choice((*PRIORITIES, BEST)),
    metavar="ORDER",
    help=f"Which buffer --method bestfit places first: {', '.join(PRIORITIES)}; "
    f"{BEST} tries all  [default: {PRIORITIES[0]}]",
)
@click.option(
    "--time-limit",
    type=arguments.Number(),
    metavar="S",
    help="Time limit in seconds  [default: none, but a fixed amount of work]",
)
@click.option(
    "--budget",
    metavar="BYTES|SHARE|min",
    help="Most bytes of live tensors: a size (8GiB), a share of the recorded peak "
    "(70%), or min, the least that is found. Modules whose activations do not fit "
    "compute them again in the backward pass. TRACE must be recorded with "
    "--activations.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="MODULE",
    help="Module that is not computed again, nor what is in it; repeatable.",
)
@click.option(
    "--curve",
    is_flag=True,
    help="Show memory against time for budgets from the recorded peak to the least; "
    "with -o, draw a picture (.svg, .png, .pdf).",
)
@click.option(
    "--capacity",
    type=parse_bytes,
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
    metavar="N",
    help="Random seed",
)
@click.option(
    "--mip-solver",
    type=click.Choice(MIP_SOLVERS),
    help="Solver for --method mip  [default: cbc]",
)
@arguments.step(
    "Step to plan: its number, hot for the one that repeats, or all for the whole run"
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
    options: Options,
    budget: str | None,
    keep: tuple[str, ...],
    curve: bool,
    capacity: int | None,
    capacity_of: CapacityOf | None,
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

    With --budget, the plan also says which modules compute their activations again, so
    that a training step fits. A budget that cannot be met exits 4.

    \b
    Example: memplan solve train.parquet -o train.plan.json
    """
    _check(capacity_of is not None, "--capacity-of", "--capacity", capacity is not None)
    wanted = budget is not None or curve
    _check(bool(keep), "--keep", "--budget or --curve", wanted)
    if curve:
        _curve(trace, keep, output, force, device, json_)
        return
    # A question is answered; a file is for whoever names one.
    path = output
    if path is None and capacity is None:
        path = Path(f"{arguments.stem(trace, '.csv')}.plan.json")
    if path is not None:
        refuse_overwrite(path, force)
    with sniff(trace) as file:
        more = () if budget is None else ("time_ns", "stack")
        given = arguments.read_input(file, "size", *more, device=device)
        source = Source(name_as_text(trace.name), file.sha256(), step)
    if output is None and path is not None and _is_large(given):
        path = path.with_suffix(PARQUET)
        refuse_overwrite(path, force)
    budgeted = None if budget is None else _within(given, budget, keep)
    if budgeted is not None:
        given = budgeted.trace
    room = None
    start = time.perf_counter()

    def attempt(options: Options) -> Plan:
        return _solve(given, method, options, alignment, source)

    try:
        if capacity is None:
            plan = attempt(options)
        else:
            room = room_for(given, capacity, capacity_of, step)
            plan = solve_within(room, options, attempt)
    except NoPlanError as error:
        if json_ and capacity is not None:
            # Without a step that repeats, what lies outside of it is not known.
            asked: dict[str, Any] = {"capacity": capacity}
            asked["capacity_of"] = capacity_of or "live"
            asked |= {} if room is None else _compared(room)
            asked |= {"method": method, "seed": options.seed}
            asked["seconds"] = time.perf_counter() - start
            show.as_json(asked | _refused(error), "memplan.solve-result")
        raise
    if budgeted is not None:
        plan = replace(plan, recompute=budgeted.chosen.units)
    if plan.provenance.note:
        show.note(f"{method}: {plan.provenance.note}")
    if path is not None:
        write_plan(plan, path, force=force)
    expected = None
    with contextlib.suppress(KeyboardInterrupt):  # the plan is there all the same
        # What was resident in the recording says nothing of a program made smaller.
        recorded = given if budgeted is None and isinstance(given, Trace) else None
        expected = None if recorded is None else outlook(recorded, plan)
    _tell(Solved(plan, given, path, room, expected, budgeted), json_)


def _check(given: bool, flag: str, other: str, other_given: bool) -> None:
    """Raise UsageError for an option that has no effect without another one."""
    if given and not other_given:
        raise UsageError(f"{flag} is for {other}; give that, too")


def _is_large(given: Trace | Problem) -> bool:
    return isinstance(given, Problem) and len(given) >= MANY_BUFFERS


def _refused(error: NoPlanError) -> dict[str, Any]:
    """What is known where there is no plan."""
    fits = "infeasible" if isinstance(error, InfeasibleError) else "unknown"
    return {"plan": None, "status": fits, **show.picked(error, "lower_bound", "peak")}


def _within(given: Trace | Problem, budget: str, keep: tuple[str, ...]) -> Budgeted:
    from memplan.cli.budget import within

    return within(given, budget, keep)


def _curve(
    trace: Path,
    keep: tuple[str, ...],
    output: Path | None,
    force: bool,
    device: int | None,
    json_: bool,
) -> None:
    """`--curve`. Raises UsageError for options that have no effect then."""
    from memplan.cli.budget import show_curve

    without = ("budget", "capacity", "capacity_of", "priority", "mip_solver", "step")
    flags = {name: f"--{name.replace('_', '-')}" for name in (*without, "alignment")}
    arguments.refuse(flags, "not for --curve; leave it out")
    given = arguments.read_input(trace, "size", "time_ns", "stack", device=device)
    show_curve(given, keep, trace.name, output, force, json_)


def _tell(found: Solved, json_: bool) -> None:
    """What was found, and what to do next."""
    path = found.path
    if json_:
        show.as_json(found.entries(), "memplan.solve-result")
    else:
        title = "it fits" if path is None else f"planned {path}"
        show.facts(f"memplan: {title}", found.rows())
    if found.expected is not None:
        _warn(found.plan, found.expected)
    if path is None and not json_:
        show.line("  no plan was written; -o FILE writes it")
    elif path != STDOUT and not json_:
        show.line(f"  next: memplan {_next(found, path)}")


@dataclass(frozen=True)
class Solved:
    """What was found. path: of the plan's file, if it was written. room: what a
    capacity was compared with. expected: what the plan brings, where that is known."""

    plan: Plan
    given: Trace | Problem
    path: Path | None
    room: Room | None
    expected: Outlook | None
    budgeted: Budgeted | None

    def entries(self) -> dict[str, Any]:
        """As JSON has it."""
        names = ("lower_bound", "peak", "gap", "status", "elastic", "arena_bytes")
        found = show.picked(self.plan, *names)
        found |= show.picked(self.plan.provenance, "method", "seconds", "seed")
        found |= {"buffers": len(self.plan.problem), "kinds": len(self.plan.kinds)}
        found["plan"] = self.path
        if self.room is not None:
            found |= _compared(self.room)
        if self.budgeted is not None:
            found["budget"] = self.budgeted.entries()
        if self.expected is not None:
            found["outlook"] = plain(self.expected) | {"pays": self.expected.pays}
        run = self.plan.provenance.recorded_device
        if run.planned_bytes:
            found["reserved"] = {
                "recorded_bytes": run.reserved_bytes,
                "planned_bytes": run.planned_bytes,
                "expandable_bytes": run.expandable_bytes,
                "pays": self.plan.pays,
            }
        return found

    def rows(self) -> list[tuple[str, str]]:
        """For people: the plan, what takes up a capacity, and what the plan brings."""
        rows = [*self._plan_rows(), *self._room_rows(), *self._outlook_rows()]
        if self.budgeted is not None:
            rows = self.budgeted.rows(rows)
        return [*rows, *self._device_rows()]

    def _plan_rows(self) -> list[tuple[str, str]]:
        plan, made = self.plan, self.plan.provenance
        arena, kinds = format_bytes(plan.arena_bytes), len(plan.kinds)
        rows = [("method", f"{made.method}, {format_seconds(made.seconds)}")]
        if plan.elastic:
            rows.append(("steps", "alike but for their sizes: planned for the largest"))
        rows += [
            ("buffers", f"{len(plan.problem):,}"),
            ("peak", format_bytes(plan.peak)),
            ("lower bound", format_bytes(plan.lower_bound)),
            ("gap", format_gap(plan.gap) + _proof(plan)),
            *arena_rows(plan),
        ]
        if plan.lanes:
            many = f"{plan.lanes:,} at a time, each in an arena of its own"
            rows.append(("threads", f"{many}: {arena} together"))
        if made.program.marks == UNMARKED:
            rows.append(("loop", "not marked: found in the sequence of requests"))
        if kinds:
            steps = sum(kind.seen for kind in plan.kinds)
            rows.append(("other steps", f"{steps:,} of {kinds:,} kinds, arena {arena}"))
        if plan.warmup is not None and plan.hot.requests is not None:
            count = len(plan.warmup.problem)
            rows.append(("warm-up", f"{count:,} buffers in the same arena"))
        return rows

    def _room_rows(self) -> list[tuple[str, str]]:
        """What takes up how much of the capacity, and what is not counted."""
        plan, room = self.plan, self.room
        if room is None:
            return []
        beyond = (room.beyond, "of the process beside its tensors")
        parts = [
            (plan.arena_bytes, "planned arena"),
            (room.outliving, "outlives its steps"),
            (room.other_streams, "on other streams"),
            beyond,
        ]
        needed = room.needed(plan)
        if needed > sum(size for size, _ in parts):  # in the warm-up, or at the end
            parts = [(room.live, "live at once in the recording"), beyond]
        named = [f"{format_bytes(size)} {what}" for size, what in parts if size]
        fits = f"{format_bytes(needed)} of {format_bytes(room.capacity)}: it fits"
        rows = [
            ("capacity", fits),
            ("counted", ", ".join(named) or "nothing"),
            ("not counted", _LEFT_OUT[room.of]),
        ]
        if not room.whole:
            rows.append(("", "what the recording lacks: it is not whole"))
        return rows

    def _outlook_rows(self) -> list[tuple[str, str]]:
        found = self.expected
        if found is None or not found.peak_now:
            return []
        now = _between(found.peak_now_least, found.peak_now)
        planned = _between(found.peak_planned_least, found.peak_planned)
        reach = format_bytes(found.out_of_reach)
        return [
            ("resident", f"at most {planned} under the plan, {now} without it"),
            ("out of reach", f"{reach}, which no plan can change"),
        ]

    def _device_rows(self) -> list[tuple[str, str]]:
        """What torch would reserve of the GPU."""
        run = self.plan.provenance.recorded_device
        if not run.planned_bytes:
            return []
        recorded = format_bytes(run.reserved_bytes)
        planned = format_bytes(run.planned_bytes)
        rows = [("reserved", f"{recorded} recorded, {planned} under the plan")]
        if not self.plan.pays:
            rows.append(("", "which is more: memplan apply runs the program without"))
        if run.expandable_bytes:
            other = format_bytes(run.expandable_bytes)
            rows.append(("", f"{other} with {EXPANDABLE} and no plan"))
            if run.expandable_bytes < min(run.planned_bytes, run.reserved_bytes):
                rows.append(
                    ("", "which is less: set it in PYTORCH_CUDA_ALLOC_CONF instead")
                )
        return rows


def _between(least: int, most: int) -> str:
    """Bytes from `least` to `most`, as one size where they read alike."""
    sizes = dict.fromkeys(map(format_bytes, (least, most)))
    return " to ".join(sizes)


def _compared(room: Room) -> dict[str, Any]:
    return show.picked(room, "capacity", capacity_of="of", outside_bytes="outside")


def arena_rows(plan: Plan) -> list[tuple[str, str]]:
    """The arena that is another than its offsets reach; no row where there is none."""
    if not plan.lifespan_bytes:
        return []
    arena = format_bytes(plan.arena_bytes)
    return [("arena", f"{arena}, where blocks lie by how long they live")]


def _proof(plan: Plan) -> str:
    """What is to be said after the gap: nothing, or that the peak is least.

    Of a plan by lifespan it is that of offsets at which no block need come to lie.
    """
    if plan.lifespan_bytes:
        return ", of a step of the largest sizes"
    return ", proved optimal" if plan.proved_optimal and len(plan.problem) else ""


def _warn(plan: Plan, found: Outlook) -> None:
    """Say so where the plan is of little, or of no use."""
    held = plan.lower_bound * max(plan.lanes, 1)
    if not len(plan.problem):
        show.complaint(
            "the hot step asks for nothing that it frees: the plan serves none of its "
            "requests; mark the top of the loop with memplan.step() and record again"
        )
    elif not found.pays:
        show.complaint(
            f"the plan does not pay in memory: it saves {found.saved_most:.1%} of the "
            "peak at most; it may still save page faults, and time"
        )
    in_steps = found.most_live - found.persistent
    if len(plan.problem) and held < COVERED * in_steps:
        show.complaint(
            f"the plan is for {format_bytes(held)} of the {format_bytes(in_steps)} of "
            "passing blocks at the trace's peak: most of it lies outside the hot step; "
            "if that is the loop's, mark its top with memplan.step()"
        )


def _next(found: Solved, path: Path | None) -> str:
    """What a user will want to do with the plan."""
    given = found.given
    if isinstance(given, Problem) or not found.plan.pays:
        return f"plot {shlex.quote(str(path))} -o packing.png"
    part = found.plan.recompute
    verb = "verify" if part is not None and part.units else "apply"  # first a trial
    return shlex.join([verb, str(path), *(given.info.argv or ("SCRIPT",))])


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
        why = f"the plan does not verify: {violations[0].message}"
        raise MemplanError(f"internal error: {why}")
    return plan
