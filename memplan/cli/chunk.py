"""`memplan chunk`: run a model in chunks so that its activations fit a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
from memplan.cli import arguments, show, user_model
from memplan.cli.chunk_report import ChunkResult
from memplan.cli.user_model import UserModel
from memplan.errors import UsageError
from memplan.files import STDOUT, refuse_overwrite, write_bytes


@dataclass(frozen=True)
class Outputs:
    """The files to write: plan, Python, picture; or the result as JSON.

    Raises UsageError if a file must not be written, or two are the same.
    """

    output: Path | None
    emit: Path | None
    plot: Path | None
    force: bool
    json_: bool

    def __post_init__(self) -> None:
        for path in (self.output, self.emit):
            if path is not None:
                refuse_overwrite(path, self.force)
        if self.plot is not None:
            from memplan.plotting.save import check_target

            check_target(self.plot, force=self.force)
        named = [path for path in (self.output, self.emit, self.plot) if path]
        if len({path.resolve() for path in named}) < len(named):
            raise UsageError("two outputs have the same name; give each its own")


@click.command("chunk")
@user_model.option
@click.option(
    "--budget",
    metavar="SHARE|BYTES|min",
    help="Memory for activations: a share of their present peak (20%), a size "
    "(512MiB), or min.",
)
@click.option(
    "--train",
    is_flag=True,
    help="Chunk a training step: the model returns its loss, whose logits are made in "
    "slices.",
)
@click.option(
    "--max-slowdown",
    type=arguments.Number(above=True),
    default=MAX_SLOWDOWN,
    metavar="RATIO",
    help="Largest accepted ratio of chunked to original time, also for --plan.",
)
@click.option(
    "--plan",
    "old",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Reuse a plan of the same model instead of searching for a budget.",
)
@arguments.gathered(
    "outputs",
    Outputs,
    arguments.output("Write the plan to this file; - is standard output."),
    arguments.force("outputs that exist"),
    click.option(
        "--emit",
        type=arguments.OutputFile("Python is imported by its file's name"),
        help="Write the chunked model as a Python module.",
    ),
    click.option(
        "--plot",
        type=arguments.OutputFile(arguments.BY_SUFFIX),
        help="Draw the activations before and after as .png, .svg or .pdf.",
    ),
    arguments.json_,
)
@click.option(
    "--closest",
    is_flag=True,
    help="If no plan fits the budget, write the nearest one; the exit code is still 4.",
)
@arguments.threads("Number of threads that torch uses.")
@click.option(
    "--time-limit",
    type=arguments.Number(above=True),
    metavar="S",
    help="Time limit of the whole search in seconds.  [default: 60 for each attempt]",
)
def command(
    model: UserModel,
    budget: str | None,
    train: bool,
    max_slowdown: float,
    old: Path | None,
    outputs: Outputs,
    closest: bool,
    time_limit: float | None,
) -> None:
    """Run parts of a model in chunks so that its activations fit a budget.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor. With --inputs it
    returns the model alone. memplan chunks the model for inference, compares the
    results with the model's own, and measures memory and time. Ctrl-C ends the
    search with the best plan so far. With --train it chunks the cross-entropy of a
    model that returns its loss; the budget is for a step with all gradients.

    CUDA is experimental: memplan chunk has run on one GPU so far.

    \b
    Example: memplan chunk model.py:factory --budget 20% -o chunks.json
    """
    if (budget is None) == (old is None):
        raise UsageError("give either --budget, as in --budget 20%, or --plan")
    if budget is not None:
        parse_budget(budget)
    plan = None if old is None else read_chunk_plan(old)
    with model.made("chunk", "chunking", "chunked", train) as made:
        module, inputs, progress = made
        from memplan.chunking.chunk import chunk

        options = ChunkOptions(max_slowdown, Effort(), time_limit, progress)
        try:
            found, refused = chunk(module, inputs, budget, plan, options), None
        except BudgetError as error:
            found, refused = error.closest, error
    result = ChunkResult(found, outputs.output, refused)
    if refused is None or closest:
        _hand_over(result, outputs)
    elif outputs.json_:
        show.as_json(result.entries())
    if refused is not None:
        raise refused


def _hand_over(result: ChunkResult, outputs: Outputs) -> None:
    """Print the result and write the files."""
    output, plot, emit = outputs.output, outputs.plot, outputs.emit
    if output is not None:
        write_chunk_plan(result.reusable, output)
    if outputs.json_:
        show.as_json(result.entries())
    else:
        result.show()
    if output is not None and output != STDOUT:
        show.note(f"wrote {output}")
    if result.plan.status == "unchanged" or result.plan.loss_rows:
        what = "only a loss" if result.plan.loss_rows else "nothing"
        for path, done in ((plot, "drawn"), (emit, "written")):
            if path is not None:
                show.complaint(f"{what} runs in chunks, so {path} was not {done}")
        return
    if plot is not None:
        from memplan.plotting.save import save

        save(result.picture(), plot, force=outputs.force)
        show.note(f"drew {plot}")
    if emit is not None:
        write_bytes(emit, emitted(result.module, emit.stem).encode())
        show.note(f"wrote {emit}")
