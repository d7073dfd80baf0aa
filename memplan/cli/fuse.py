"""memplan fuse"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from memplan.cli import arguments, show, user_model
from memplan.cli.user_model import UserModel
from memplan.fusing.options import FuseOptions


@click.command("fuse")
@user_model.option
@click.option(
    "--show",
    "showing",
    is_flag=True,
    help="List what happened to every layer, and the steps, sequences, cache use and "
    "predicted gain of every stack.",
)
@click.option(
    "--plot",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    help="Draw layers and stacks: .png, .svg or .pdf.",
)
@arguments.force("an existing picture")
@arguments.json_
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of threads.  [default: PyTorch's own]",
)
@arguments.gathered(
    "options",
    FuseOptions,
    click.option(
        "--micro-batch",
        type=click.IntRange(min=1),
        metavar="N",
        help="Largest number of images that run through the network at a time.  "
        "[default: the fastest]",
    ),
    click.option(
        "--max-steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="Largest number of steps in a sequence.  [default: as many as fit in "
        "cache]",
    ),
    click.option(
        "--tolerance",
        type=arguments.Number(),
        default=FuseOptions.tolerance,
        metavar="X",
        help="Largest relative error against the model's own results.",
    ),
)
@click.option(
    "--keep-slower",
    is_flag=True,
    help="Fuse even if that takes more time or memory.",
)
def command(
    model: UserModel,
    showing: bool,
    plot: Path | None,
    force: bool,
    json_: bool,
    keep_slower: bool,
    options: FuseOptions,
) -> None:
    """Speed up a model's inference on the CPU by running layers depth-first.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor. With --inputs it returns
    the model alone. memplan fuses the model, compares the results with the model's
    own, and times both. A model that cannot be fused, or that would take more time or
    memory, runs unchanged; the report gives the reason, and the exit code is 0.

    \b
    Example: memplan fuse model.py:factory --show --plot stacks.svg
    """
    if plot is not None:
        from memplan.plotting.save import check_target

        check_target(plot, force=force)
    with model.made("fuse", "fusing", "fused") as (module, inputs, _):
        from memplan.cli import fuse_report
        from memplan.compiling.examine import examine

        found = examine(module, inputs, replace(options, measure=not keep_slower))
    for line in found.warnings:
        show.complaint(line)
    if json_:
        show.as_json(fuse_report.document(found), "memplan.fuse")
    else:
        fuse_report.report(found)
        if showing:
            fuse_report.layers(found)
            fuse_report.stacks(found)
    if plot is None:
        return
    if not any(part.layers for part in found.summary.parts):
        show.complaint(f"{plot} was not drawn: no layers of the model are known")
        return
    from memplan.plotting.save import save

    save(fuse_report.picture(found), plot, force=force)
    show.note(f"drew {plot}")
