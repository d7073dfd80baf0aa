"""memplan chunk"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from memplan.chunking.budget import parse_budget
from memplan.chunking.choice import Effort
from memplan.chunking.chunk import chunk
from memplan.chunking.emit import emitted
from memplan.chunking.options import MAX_SLOWDOWN, BudgetError, ChunkOptions
from memplan.chunking.plan import ChunkPlan
from memplan.chunking.planfile import read_chunk_plan, to_json, write_chunk_plan
from memplan.cli import arguments, show
from memplan.cli.chunk_report import report
from memplan.cli.progress import working
from memplan.cli.user_model import told_apart, user_model
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite, write_bytes
from memplan.recording.shim import require_torch


@dataclass(frozen=True)
class Outputs:
    """The files to be written: plan, Python, picture."""

    plan: Path | None
    emit: Path | None
    plot: Path | None
    force: bool

    def check(self) -> None:
        """Raise UsageError if one may not be written, or if two are the same."""
        for path in (self.plan, self.emit):
            if path is not None:
                refuse_overwrite(path, self.force)
        if self.plot is not None:
            from memplan.plotting.save import check_target

            check_target(self.plot, force=self.force)
        named = [path for path in (self.plan, self.emit, self.plot) if path]
        if len({path.resolve() for path in named}) < len(named):
            raise UsageError("two outputs have the same name; give each its own")


@click.command("chunk")
@click.argument("model", metavar="FILE.py:FACTORY")
@click.option(
    "--budget",
    metavar="SHARE|BYTES|min",
    help="For activations: 20% of what they take now, 512MiB, or as little as can be.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=0, min_open=True),
    default=MAX_SLOWDOWN,
    show_default=True,
    metavar="RATIO",
    help="The longest that it may take, over the time it takes now; of a plan given "
    "with --plan as well.",
)
@click.option(
    "--inputs",
    metavar="FILE.py:FUNCTION",
    help="What makes the inputs, if the factory does not return them.",
)
@click.option(
    "--plan",
    "old",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Take this plan, made before of the same model, instead of a budget.",
)
@arguments.output("Write the plan to this file; - is standard output.")
@arguments.force("outputs that exist")
@click.option(
    "--emit",
    type=arguments.OutputFile("Python is imported by its file's name"),
    help="Write the model as it runs in chunks as Python.",
)
@click.option(
    "--plot",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    help="Draw the activations before and after: .png, .svg or .pdf.",
)
@arguments.json_
@click.option(
    "--closest",
    is_flag=True,
    help="Where no plan keeps to the budget, hand over the nearest; the exit code is 4 "
    "all the same.",
)
@click.option(
    "--cost",
    type=click.Choice(["time", "paper"]),
    default="time",
    show_default=True,
    help="What the search prefers: fast loops by a model of this machine, or those of "
    "the paper's macro and micro costs. The best few are timed either way.",
)
@arguments.threads("How many torch uses.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds to search.  [default: a minute for each try]",
)
def command(
    model: str,
    budget: str | None,
    max_slowdown: float,
    inputs: str | None,
    old: Path | None,
    output: Path | None,
    force: bool,
    emit: Path | None,
    plot: Path | None,
    json_: bool,
    closest: bool,
    cost: str,
    threads: int | None,
    time_limit: float | None,
) -> None:
    """Find which parts of a model to run in chunks so that its activations fit.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor; or the model alone, with
    --inputs. Its inference is chunked, checked against the model, measured and timed.
    Ctrl-C ends the search with the best found until then.

    CUDA is experimental: it has not run on a GPU yet.

    \b
    Example: memplan chunk model.py:factory --budget 20% -o chunks.json
    """
    if (budget is None) == (old is None):
        raise UsageError("give either --budget, as in --budget 20%, or --plan")
    if budget is not None:
        parse_budget(budget)
    outputs = Outputs(output, emit, plot, force)
    outputs.check()
    plan = None if old is None else read_chunk_plan(old)
    torch = require_torch("chunking a model")
    if threads is not None:
        torch.set_num_threads(threads)
    with told_apart(), working("chunk") as told:
        module, given = user_model(torch, model, inputs, "chunked")
        options = ChunkOptions(
            max_slowdown, Effort(cost=cost), time_limit, told or (lambda _: None)
        )
        try:
            found, refused = chunk(module, given, budget, plan, options), None
        except BudgetError as error:
            found, refused = error.closest, error
    if refused is None:
        _hand_over(found, outputs, json_)
        return
    if closest:
        _keep_to_what_it_does(found)
        _hand_over(found, outputs, json_, refused)
    elif json_:
        show.as_json(_entries(found.memplan, None, refused))
    raise refused


def _keep_to_what_it_does(module: Any) -> None:
    """Give the nearest plan the budget that it keeps to, so that it can be used."""
    plan = module.memplan
    budget = max(plan.budget_bytes, plan.measured_bytes_after)
    module.memplan = replace(plan, budget_bytes=budget)


def _hand_over(
    module: Any, outputs: Outputs, json_: bool, refused: BudgetError | None = None
) -> None:
    """Print the result, and write what is to be written."""
    plan = module.memplan
    if outputs.plan is not None:
        write_chunk_plan(plan, outputs.plan)
    if json_:
        show.as_json(_entries(plan, outputs.plan, refused))
    else:
        report(plan, type(module.model).__name__)
    if outputs.plan is not None and outputs.plan != STDOUT:
        show.note(f"wrote {outputs.plan}")
    if outputs.plot is not None:
        _draw(module, outputs.plot, outputs.force)
    if outputs.emit is not None:
        _emit(module, outputs.emit)


def _emit(module: Any, path: Path) -> None:
    if module.memplan.status == "unchanged":
        show.complaint(f"nothing runs in chunks, so {path} was not written")
        return
    write_bytes(path, emitted(module, path.stem).encode())
    show.note(f"wrote {path}")


def _draw(module: Any, path: Path, force: bool) -> None:
    if module.memplan.status == "unchanged":
        show.complaint(f"nothing runs in chunks, so {path} was not drawn")
        return
    from memplan.cli.chunk_picture import picture
    from memplan.plotting.save import save

    save(picture(module), path, force=force)
    show.note(f"drew {path}")


def _entries(
    plan: ChunkPlan, output: Path | None, refused: BudgetError | None
) -> dict[str, object]:
    entries = to_json(plan)
    entries["plan"] = None if output is None else str(output)
    if refused is not None:
        entries |= {"status": "refused", "reason": str(refused)}
    return entries
