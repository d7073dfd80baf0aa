"""`memplan chunk`: run a model in chunks so that its activations fit a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan.chunking.code import emitted
from memplan.chunking.options import (
    MAX_SLOWDOWN,
    BudgetError,
    ChunkOptions,
    Effort,
    parse_budget,
)
from memplan.chunking.planfile import read_chunk_plan, write_chunk_plan
from memplan.cli import arguments, show
from memplan.cli.chunk_report import ChunkResult
from memplan.cli.progress import working
from memplan.cli.user_model import prints_to_stderr, user_model
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite, write_bytes
from memplan.recording.shim import require_torch

if TYPE_CHECKING:
    from memplan.chunking.module import Chunked


@dataclass(frozen=True)
class Outputs:
    """The files to write: plan, Python, picture."""

    plan: Path | None
    emit: Path | None
    plot: Path | None
    force: bool

    def check(self) -> None:
        """Raise UsageError if a file must not be written, or two are the same."""
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
    help="Memory for activations: a share of their present peak (20%), a size "
    "(512MiB), or min.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=0, min_open=True),
    default=MAX_SLOWDOWN,
    show_default=True,
    metavar="RATIO",
    help="Largest accepted ratio of chunked to original time, also for --plan.",
)
@click.option(
    "--inputs",
    metavar="FILE.py:FUNCTION",
    help="Function that returns the inputs, if FACTORY returns a model alone.",
)
@click.option(
    "--plan",
    "old",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Reuse a plan of the same model instead of searching for a budget.",
)
@arguments.output("Write the plan to this file; - is standard output.")
@arguments.force("outputs that exist")
@click.option(
    "--emit",
    type=arguments.OutputFile("Python is imported by its file's name"),
    help="Write the chunked model as a Python module.",
)
@click.option(
    "--plot",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    help="Draw the activations before and after as .png, .svg or .pdf.",
)
@arguments.json_
@click.option(
    "--closest",
    is_flag=True,
    help="If no plan fits the budget, write the nearest one; the exit code is still 4.",
)
@arguments.threads("Number of threads that torch uses.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Time limit of the whole search in seconds.  [default: 60 for each attempt]",
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
    threads: int | None,
    time_limit: float | None,
) -> None:
    """Run parts of a model in chunks so that its activations fit a budget.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor. With --inputs it
    returns the model alone. memplan chunks the model for inference, compares the
    results with the model's own, and measures memory and time. Ctrl-C ends the
    search with the best plan so far.

    CUDA is experimental: memplan chunk has not run on a GPU yet.

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
    from memplan.chunking.chunk import chunk

    if threads is not None:
        torch.set_num_threads(threads)
    with prints_to_stderr(), working("chunk") as progress:
        module, inputs_ = user_model(torch, model, inputs, "chunked")
        options = ChunkOptions(max_slowdown, Effort(), time_limit, progress)
        try:
            found, refused = chunk(module, inputs_, budget, plan, options), None
        except BudgetError as error:
            found, refused = error.closest, error
    if refused is not None and closest:
        _fit_budget_to(found)
    result = ChunkResult(found, output, refused)
    if refused is None or closest:
        _hand_over(result, outputs, json_)
    elif json_:
        show.as_json(result.entries())
    if refused is not None:
        raise refused


def _fit_budget_to(module: Chunked) -> None:
    """Give the closest plan the budget that it fits, so that it can be reused."""
    plan = module.memplan
    budget = max(plan.budget_bytes, plan.measured_bytes_after)
    module.memplan = replace(plan, budget_bytes=budget)


def _hand_over(result: ChunkResult, outputs: Outputs, json_: bool) -> None:
    """Print the result and write the files."""
    if outputs.plan is not None:
        write_chunk_plan(result.plan, outputs.plan)
    if json_:
        show.as_json(result.entries())
    else:
        result.show()
    if outputs.plan is not None and outputs.plan != STDOUT:
        show.note(f"wrote {outputs.plan}")
    unchanged = result.plan.status == "unchanged"
    if outputs.plot is not None and unchanged:
        show.complaint(f"nothing runs in chunks, so {outputs.plot} was not drawn")
    elif outputs.plot is not None:
        from memplan.plotting.save import save

        save(result.picture(), outputs.plot, force=outputs.force)
        show.note(f"drew {outputs.plot}")
    if outputs.emit is not None and unchanged:
        show.complaint(f"nothing runs in chunks, so {outputs.emit} was not written")
    elif outputs.emit is not None:
        text = emitted(result.module, outputs.emit.stem)
        write_bytes(outputs.emit, text.encode())
        show.note(f"wrote {outputs.emit}")
