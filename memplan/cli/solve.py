"""memplan solve"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.core.plan import Plan, Source
from memplan.core.planfile import write_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import MemplanError
from memplan.files import read_bytes, refuse_overwrite
from memplan.solve.solve import METHOD_NAMES, solve
from memplan.trace.trace import Trace
from memplan.units import format_bytes, format_gap, format_seconds


@click.command("solve")
@arguments.existing("trace")
@click.option(
    "--method",
    type=click.Choice(METHOD_NAMES),
    default="bestfit",
    show_default=True,
    help="How to place the buffers.",
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
    type=click.IntRange(min=1),
    help="Bytes that offsets are multiples of.  [default: the trace's own]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The plan.  [default: TRACE.plan.json]",
)
@click.option("--force", is_flag=True, help="Replace the plan if it exists.")
@click.option("--json", "json_", is_flag=True, help="Print the result as JSON.")
def command(
    trace: Path,
    method: str,
    step: str,
    alignment: int | None,
    output: Path | None,
    force: bool,
    json_: bool,
) -> None:
    """Plan the memory of TRACE: an offset for every buffer of its hot step.

    TRACE is a recorded trace, or a MiniMalloc CSV file. The plan says how good it
    is: its lower bound is what no plan can do with less than.

    \b
    Example: memplan solve train.parquet -o train.plan.json
    """
    path = output or _default_output(trace)
    refuse_overwrite(path, force)
    source = read_bytes(trace)
    given = arguments.read_input(trace)
    plan = solve(
        given,
        method,
        step=step,
        alignment=alignment,
        origin=Source(trace.name, hashlib.sha256(source).hexdigest(), step),
    )
    del source
    violations = verify(plan)
    if violations:  # a bug of ours: never let it out of the door
        raise MemplanError(f"the plan found does not verify: {violations[0].message}")
    write_plan(plan, path, force=force)
    if json_:
        show.as_json(_entries(plan, path))
    else:
        show.facts(f"memplan: planned {path}", _rows(plan))
        click.echo(f"  next: memplan {_next(given, path)}")


def _default_output(trace: Path) -> Path:
    name = trace.name
    for suffix in (".parquet", ".json.gz", ".json", ".csv"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.plan.json")


def _entries(plan: Plan, path: Path) -> dict[str, object]:
    return {
        "schema": "memplan.solve-result",
        "version": 1,
        "method": plan.method,
        "buffers": len(plan.problem),
        "lower_bound": plan.lower_bound,
        "peak": plan.peak,
        "gap": plan.gap,
        "status": plan.status,
        "seconds": plan.seconds,
        "plan": str(path),
    }


def _rows(plan: Plan) -> list[tuple[str, str]]:
    proof = ", proved optimal" if plan.proved_optimal else ""
    rows = [
        ("method", f"{plan.method}, {format_seconds(plan.seconds)}"),
        ("buffers", f"{len(plan.problem):,}"),
        ("peak", format_bytes(plan.peak)),
        ("lower bound", format_bytes(plan.lower_bound)),
        ("gap", format_gap(plan.gap) + proof),
    ]
    if plan.warmup is not None and plan.requests is not None:
        rows.append(
            ("warm-up", f"{len(plan.warmup.problem):,} buffers in the same arena")
        )
    return rows


def _next(given: Trace | Problem, plan: Path) -> str:
    """What a user will want to do with the plan."""
    if isinstance(given, Problem):
        return f"plot {shlex.quote(str(plan))} -o packing.png"
    return shlex.join(["apply", str(plan), *(given.info.argv or ("SCRIPT",))])
