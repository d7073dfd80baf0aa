"""`memplan compile`: run a model's inference in one arena."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan.cli import arguments, show, user_model
from memplan.cli.chunk_report import place
from memplan.cli.user_model import UserModel
from memplan.core.planfile import write_plan
from memplan.files import STDOUT, refuse_overwrite
from memplan.units import budget_of, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan.compiling.emit import Emitted
    from memplan.compiling.levels import Level
    from memplan.compiling.report import CompilePlan, Front

FIELDS = (
    *("status", "reason", "torch", "bytes_before", "bytes_after", "arena", "beside"),
    *("lent", "peak_operator", "peak_line"),
    *("requests_before", "requests_after", "asking", "operators", "loops", "again"),
    *("order_proof", "order_bound", "kernels", "fused", "folded", "packed", "error"),
    *("seconds_before", "seconds_after", "internal_errors"),
)
LEVELS = (
    *("status", "reason", "bytes_after", "arena", "beside", "requests_after"),
    *("error", "seconds_before", "seconds_after", "slowdown"),
)
EMITTED = ("path", "weights", "bytes_after", "requests", "slowdown")
PART = ("bytes_before", "bytes_after", "arena", "loops", "kernels", "packed")
FRONT = (
    *("bytes_after", "arena", "beside", "loops", "again", "packed", "error"),
    *("seconds_before", "seconds_after", "slowdown"),
)
ORDERS = {
    "bound": "proved: its peak equals a bound for all orders",
    "search": "proved: a search found no order with a lower peak",
}


@click.command("compile")
@user_model.option
@click.option(
    "--budget",
    metavar="SHARE|BYTES|min",
    help="Memory for activations: 25% (of their peak now), 24MiB or min.  "
    "[default: as little as possible without chunking]",
)
@click.option(
    "--max-slowdown",
    type=arguments.Number(above=True),
    metavar="RATIO",
    help="Largest accepted ratio of compiled to original time.  [default: 1.02, "
    "1.1 with --budget, none with --front]",
)
@click.option(
    "--pack/--no-pack",
    default=None,
    help="Run convolutions, linear layers and what surrounds them as memplan's "
    "kernels, which keep the weights in a layout of their own, too; mostly faster, and "
    "for convolutions with smaller activations.  "
    "[default: where that takes no more memory than it saves]",
)
@click.option(
    "--reuse-outputs",
    is_flag=True,
    help="Lay results in the arena, too, so that a call asks the allocator for "
    "nothing.",
)
@click.option(
    "--front",
    is_flag=True,
    help="Search budgets downwards, and list the measured plans that no other beats in "
    "both memory and time. Then choose one with --budget and --max-slowdown.",
)
@click.option(
    "--levels",
    is_flag=True,
    help="List what each pass brought: order, overwriting, kernels, loops.",
)
@click.option(
    "--plot",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    help="Draw live bytes over the schedule after each pass, with --levels: .png, .svg "
    "or .pdf.",
)
@click.option(
    "--emit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.py",
    help="Write the compiled model as a Python program that needs torch alone, and its "
    "weights beside it as FILE.pt. It goes without memplan's kernels.",
)
@arguments.output("Write the arena's plan to this file; - is standard output.")
@arguments.force("existing files")
@arguments.json_
@arguments.threads("Number of threads that torch uses.")
@click.option(
    "--time-limit",
    type=arguments.Number(above=True),
    metavar="S",
    help="Seconds after which the search for chunks ends.  [default: none]",
)
def command(
    model: UserModel,
    budget: str | None,
    max_slowdown: float | None,
    pack: bool | None,
    reuse_outputs: bool,
    front: bool,
    levels: bool,
    plot: Path | None,
    emit: Path | None,
    output: Path | None,
    force: bool,
    json_: bool,
    time_limit: float | None,
) -> None:
    """Run a model's inference in one arena, within a budget if you give one.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor. memplan exports the model,
    orders its operators, runs them in chunks if the budget requires it, and plans an
    arena for their results. It compares the results with the model's and measures
    memory and time. A model that gains nothing runs unchanged; the report gives the
    reason, and the exit code is 0 (4 with --front or --levels, which then have nothing
    to list).

    \b
    Example: memplan compile model.py:factory --budget 25% -o arena.json
    """
    from memplan.chunking.options import parse_budget

    if budget is not None:
        parse_budget(budget)
    if front:
        many = {"--budget": budget, "--output": output, "--levels": levels}
        _check_alone("--front lists many plans", {**many, "--emit": emit})
    if emit is not None:
        kinds = {"--pack": pack, "--reuse-outputs": reuse_outputs, "--levels": levels}
        _check_alone("--emit writes what runs without memplan", kinds)
    if plot is not None and not levels:
        raise click.UsageError("--plot draws what --levels lists; add --levels")
    _check_targets(emit, output, plot, force)
    with model.made("compile", "compiling", "compiled") as (module, inputs, progress):
        from memplan.compiling import compile as compiling
        from memplan.compiling import emit as emitting
        from memplan.compiling.bench import CompileOptions
        from memplan.compiling.levels import compile_levels

        own = emit is not None
        choices = max_slowdown, pack, reuse_outputs, progress, own, time_limit
        options = CompileOptions(*choices)
        steps: tuple[Level, ...] = ()
        emitted: Emitted | None = None
        if front:
            found = compiling.compile_front(module, inputs, options)
        elif levels:
            steps = compile_levels(module, inputs, budget, options)
        else:
            made = compiling.compile(module, inputs, budget, options)
            plan = made.memplan
            if emit is not None and plan.plan is not None:
                emitted = emitting.emit(made, inputs, emit)
    if front:
        _front(type(module).__name__, found, json_)
        return
    plan = steps[-1].plan if steps else plan
    if json_:
        _as_json(plan, steps, output, emitted)
    else:
        _report(type(module).__name__, plan, reuse_outputs)
        _levels(steps)
        _defects(plan)
        _emitted(emitted)
    _write_plan(plan, emit, output)
    _draw(type(module).__name__, steps, plot, force)


def _write_plan(plan: CompilePlan, emit: Path | None, output: Path | None) -> None:
    """Write the arena's plan; complain of what was asked for and is not there."""
    if plan.plan is not None and output is not None:
        write_plan(plan.plan, output)
        if output != STDOUT:
            show.note(f"wrote {output}")
    if plan.plan is None:
        why = "its parts have a plan each" if plan.parts else "the model runs unchanged"
        for path in filter(None, (emit, output)):
            show.complaint(f"{why}, so {path} was not written")


def _check_alone(why: str, given: Mapping[str, object]) -> None:
    """Raise UsageError for an option beside one that goes without it."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{why}; it does not go with {name}")


def _files(emit: Path | None, output: Path | None) -> Iterator[Path]:
    """The files to be written. Raises UsageError for a program's that is none."""
    if emit is not None:
        from memplan.compiling.emit import named

        yield from (named(emit), emit.with_suffix(".pt"))
    if output is not None:
        yield output


def _emitted(emitted: Emitted | None) -> None:
    if emitted is None:
        return
    figures = f"{format_bytes(emitted.bytes_after)}, {emitted.requests:,} requests"
    show.note(
        f"wrote {emitted.path} and {emitted.weights}, which need torch alone: "
        f"{figures}, {emitted.slowdown:.2f} of the time"
    )


def _as_json(
    plan: CompilePlan,
    steps: Sequence[Level],
    output: Path | None,
    emitted: Emitted | None,
) -> None:
    entries = show.picked(plan, *FIELDS)
    arena = plan.plan and show.picked(plan.plan, "peak", "lower_bound")
    levels = [{"name": each.name, **show.picked(each.plan, *LEVELS)} for each in steps]
    parts = [{"path": p, **show.picked(each, *PART)} for p, each in plan.parts.items()]
    entries |= {"plan": arena, "output": output, "levels": levels, "parts": parts}
    entries["emitted"] = emitted and show.picked(emitted, *EMITTED)
    show.as_json(entries, "memplan.compile")


def _front(name: str, found: Front, json_: bool) -> None:
    """Print plans, fastest first, below the model itself."""
    plans = found.plans
    before, seconds = plans[0].bytes_before, plans[0].seconds_before
    if json_:
        front = [show.picked(plan, *FRONT) for plan in plans]
        own = {"bytes_before": before, "torch": plans[0].torch, "front": front}
        own |= show.picked(found, "interrupted", "internal_errors")
        show.as_json(own, "memplan.front")
        return
    rows = [["the model", format_bytes(before), "100 %", "1.00", "", ""]]
    for number, plan in enumerate(plans, 1):
        share = f"{100 * plan.bytes_after / before:.0f} %"
        figures = [budget_of(plan.bytes_after), share, f"{plan.slowdown:.2f}"]
        counts = [f"{plan.loops:,}", f"{len(plan.again):,}"]
        rows.append([f"plan {number}", *figures, *counts])
    columns = ("", "activations", "share", "time", "loops", "not kept")
    title = f"memplan: {name}, {format_seconds(seconds)} a call, and the measured "
    title += "plans that no other beats"
    show.table(title, columns, rows)
    if found.interrupted:
        show.note("interrupted; plans that need less may be missing")
    _defects(found)


def _levels(levels: Sequence[Level]) -> None:
    """Print what each pass brought on top of those above it, if that was asked."""
    if not levels:
        return
    first = levels[0].plan
    requests = f"{first.requests_before:,}"
    rows = [["the model", format_bytes(first.bytes_before), "100 %", requests, "1.00"]]
    for level in levels:
        plan = level.plan
        if plan.plan is None:
            rows.append([f"{level.name}: {plan.reason}"])
            continue
        share = f"{100 * plan.bytes_after / plan.bytes_before:.0f} %"
        figures = [share, f"{plan.requests_after:,}", f"{plan.slowdown:.2f}"]
        rows.append([level.name, format_bytes(plan.bytes_after), *figures])
    columns = ("", "activations", "share", "requests", "time")
    show.table("each pass on top of those above it", columns, rows)


def _check_targets(
    emit: Path | None, output: Path | None, plot: Path | None, force: bool
) -> None:
    """Raise UsageError for files that cannot be written, or exist."""
    for path in _files(emit, output):
        refuse_overwrite(path, force)
    if plot is not None:
        from memplan.plotting.save import check_target

        check_target(plot, force=force)


def _draw(name: str, found: Sequence[Level], path: Path | None, force: bool) -> None:
    """Draw what each pass brought, if that was asked."""
    if path is None:
        return
    from memplan.plotting.levels import Drawn, levels
    from memplan.plotting.save import save

    plans = [(each.name, each.plan) for each in found]
    drawn = [Drawn(n, p.plan, p.bytes_after) for n, p in plans if p.plan is not None]
    save(levels(drawn, found[0].plan.bytes_before, name), path, force=force)
    show.note(f"drew {path}")


def _defects(found: Front | CompilePlan) -> None:
    for error, count in found.internal_errors.items():
        show.complaint(
            f"dropped {count} kernels, regions or plans for a defect: {error}"
        )


def _peak(plan: CompilePlan) -> list[tuple[str, str]]:
    at = f" at {place(plan.peak_line)}" if plan.peak_line else ""
    name = plan.peak_operator.removeprefix("aten.")
    return [("fullest in", f"{name}{at}")] if plan.arena else []


def _lent(count: int) -> list[tuple[str, str]]:
    many = "block" if count == 1 else "blocks"
    return [("in a result", f"{count:,} {many}, until it is written")] if count else []


def _parts(name: str, plan: CompilePlan) -> None:
    """Print what compiling the parts of a model brought."""
    bytes_ = map(format_bytes, (plan.bytes_before, plan.bytes_after))
    times = map(format_seconds, (plan.seconds_before, plan.seconds_after))
    rows = [
        ("as a whole", plan.reason),
        ("activations", "{} before, {} after".format(*bytes_)),
        ("arena", f"{format_bytes(plan.arena)}, of the part that needs most"),
        ("beside it", f"{format_bytes(plan.beside)}, the model's own included"),
        ("requests", f"{plan.requests_before:,} before, {plan.requests_after:,} after"),
        ("time", "{} before, {} after, ".format(*times) + f"ratio {plan.slowdown:.2f}"),
        ("relative error", f"at most {plan.error:.1e}" if plan.error else "none"),
    ]
    if plan.packed:
        kept = f"{format_bytes(plan.packed)} of weights, kept beside the model's"
        rows.append(("packed", kept))
    show.facts(
        f"memplan: {name} runs, {len(plan.parts):,} of its parts in one arena", rows
    )
    table = [
        [
            path,
            *map(format_bytes, (each.bytes_before, each.bytes_after)),
            str(each.loops),
        ]
        for path, each in plan.parts.items()
    ]
    show.table("its parts, by themselves", ("", "before", "after", "loops"), table)


def _report(name: str, plan: CompilePlan, holds_outputs: bool) -> None:
    """Print what compiling brought; holds_outputs: whether the arena does."""
    if plan.parts:
        _parts(name, plan)
        return
    if plan.plan is None:
        only = [("activations", format_bytes(plan.bytes_before))]
        show.facts(f"memplan: {name} stays unchanged: {plan.reason}", only)
        return
    arena = plan.plan
    bound = f"the lower bound is {format_bytes(arena.lower_bound)}"
    proved = arena.peak == arena.lower_bound
    if plan.lent:  # other values may lie in a result: the bytes of both count
        proved = plan.bytes_after == plan.order_bound
    if proved:
        bound = "proved minimal for this order"
    elif arena.peak == arena.lower_bound:
        bound = "proved minimal for what lies in it"
    same = "none, the same bits" if not plan.error else f"at most {plan.error:.1e}"
    order = ORDERS.get(
        plan.order_proof,
        f"every order needs {format_bytes(plan.order_bound)}, results included",
    )
    inside = holds_outputs and not plan.beside
    where = "results lie in the arena" if inside else "results included"
    before, after = map(format_bytes, (plan.bytes_before, plan.bytes_after))
    asked = f"{plan.requests_before:,} a call before, {plan.requests_after:,} after"
    rows = [
        ("activations", f"{before} before, {after} after"),
        ("arena", f"{format_bytes(plan.arena)}, {bound}"),
        *_peak(plan),
        ("beside it", f"{format_bytes(plan.beside)}, {where}"),
        *_lent(plan.lent),
        ("order", order),
        ("loops", f"{plan.loops:,}"),
        ("requests", asked),
    ]
    asking = [f"{count} × {key}" for key, count in (plan.asking or {}).items()]
    rows += show.listed("torch allocates", asking) if asking else []
    if plan.again:
        rows += show.unkept(plan.again)
    before, after = map(format_seconds, (plan.seconds_before, plan.seconds_after))
    rows += [
        ("time", f"{before} before, {after} after, ratio {plan.slowdown:.2f}"),
        ("relative error", same),
    ]
    if plan.kernels:
        does = f"{plan.kernels:,} of memplan's, which do {plan.fused:,} operators"
        rows.append(("kernels", does))
    if plan.folded:
        kept = f"{format_bytes(plan.folded)} computed once and kept"
        rows.append(("constants", kept))
    if plan.packed:
        kept = f"{format_bytes(plan.packed)} of weights, kept beside the model's"
        rows.append(("packed", kept))
    show.facts(f"memplan: {name} runs in one arena", rows)
