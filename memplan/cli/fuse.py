"""memplan fuse"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from memplan.cli import arguments, show
from memplan.cli.progress import working
from memplan.cli.user_model import told_apart, user_model
from memplan.errors import UsageError
from memplan.fusing.bench.contenders import NAMES
from memplan.fusing.bench.record import DEFAULT
from memplan.fusing.examine import Examined, examine
from memplan.fusing.nodes import Joining
from memplan.fusing.options import KERNELS, FuseOptions
from memplan.recording.shim import require_torch

JOININGS = tuple(each.name for each in fields(Joining))

# What makes sense for a model only, and what for --bench only.
_OF_MODELS = (
    *("inputs", "showing", "plot", "force", "micro_batch", "max_steps"),
    *("kernels", "without", "tolerance", "keep_slower"),
)
_OF_BENCHES = ("batch", "contenders")


def words(what: str, known: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A callback that parts a list at its commas; each word is one of `known`, if there
    are any. It raises UsageError, which lists them, for others."""

    def split(
        context: click.Context, param: click.Parameter, value: str | None
    ) -> tuple[str, ...] | None:
        if value is None:
            return None
        found = tuple(word.strip() for word in value.split(","))
        for word in found:
            if known and word not in known:
                listed = ", ".join(known)
                raise UsageError(f"{word!r} is no {what}; there are {listed}")
        return found

    return split


@click.command("fuse")
@click.argument("model", metavar="[FILE.py:FACTORY]", required=False)
@click.option(
    "--inputs",
    metavar="FILE.py:FUNCTION",
    help="What makes the inputs, if the factory does not return them.",
)
@click.option(
    "--show",
    "showing",
    is_flag=True,
    help="Tell of every layer what became of it, and of every stack its steps, "
    "sequences, cache and predicted gain.",
)
@click.option(
    "--plot",
    type=arguments.OutputFile(arguments.BY_SUFFIX),
    help="Draw layers and stacks: .png, .svg or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace a picture that exists.")
@click.option("--json", "json_", is_flag=True, help="Print the result as JSON.")
@click.option("--threads", type=click.IntRange(1, 256), help="How many torch uses.")
@click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Images that go through the network at a time.  [default: the fastest of a "
    "few]",
)
@click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps of a sequence, at most; the paper's strategies are 1, 5 and none.  "
    "[default: as many as fit and pay]",
)
@click.option(
    "--kernels",
    callback=words("kernel", KERNELS),
    default=",".join(KERNELS),
    show_default=True,
    metavar="NAMES",
    help="What convolutions may run as; the fastest is taken.",
)
@click.option(
    "--without",
    callback=words("rewrite", JOININGS),
    metavar="NAMES",
    help=f"Rewrites to leave out, to see what they are worth: {', '.join(JOININGS)}.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=FuseOptions.tolerance,
    show_default=True,
    metavar="X",
    help="The largest relative error to the model's own results.",
)
@click.option(
    "--keep-slower",
    is_flag=True,
    help="Fuse it even where that takes longer, or more memory.",
)
@click.option(
    "--bench",
    callback=words("network"),
    metavar="NETWORKS",
    help="Instead of a model: measure these of the paper's networks, or stack:N.",
)
@click.option(
    "--batch",
    callback=words("batch"),
    metavar="SIZES",
    help="Batches of --bench, as in 1,8,32.  [default: 8; a stack's is 16]",
)
@click.option(
    "--contenders",
    callback=words("contender", NAMES),
    default=",".join(DEFAULT),
    show_default=True,
    metavar="NAMES",
    help="What --bench measures.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Rounds of the measurement; ratios are those of single rounds.",
)
def command(
    model: str | None,
    inputs: str | None,
    showing: bool,
    plot: Path | None,
    force: bool,
    json_: bool,
    threads: int | None,
    micro_batch: int | None,
    max_steps: int | None,
    kernels: tuple[str, ...],
    without: tuple[str, ...] | None,
    tolerance: float,
    keep_slower: bool,
    bench: tuple[str, ...] | None,
    batch: tuple[str, ...] | None,
    contenders: tuple[str, ...],
    rounds: int,
) -> None:
    """Run a model depth-first, so that its inference on the CPU takes less time.

    The function FACTORY in FILE.py returns a model and its inputs: a tuple of
    arguments, a mapping of keyword arguments, or one tensor; or the model alone, with
    --inputs. It is fused, checked against itself, measured and timed. A model that
    cannot be fused, or takes longer then, or more memory, runs as it was, and the
    report says why.

    With --bench, networks of the paper are measured beside eager PyTorch,
    torch.compile, ONNX Runtime and OpenVINO, as far as these are installed.

    \b
    Example: memplan fuse model.py:factory --show --plot stacks.svg
    Example: memplan fuse --bench resnet18,densenet121 --batch 1,8,32
    """
    _refuse_mixed(model, bench)
    if bench is not None:
        from memplan.cli.fuse_bench import Bench, run_bench

        run_bench(Bench(bench, batch, contenders, threads, rounds), json_)
        return
    assert model is not None
    joining = Joining(**{name: name not in (without or ()) for name in JOININGS})
    options = FuseOptions(
        joining, kernels, micro_batch, max_steps, tolerance, not keep_slower
    )
    if plot is not None:
        from memplan.plotting.save import check_target

        check_target(plot, force=force)
    torch = require_torch("fusing a model")
    if threads is not None:
        torch.set_num_threads(threads)
    with told_apart(), working("fuse"):
        module, given = user_model(torch, model, inputs, "fused")
        found = examine(module, given, options, rounds)
    _hand_over(found, plot, force, json_, showing)


def _refuse_mixed(model: str | None, bench: tuple[str, ...] | None) -> None:
    """Raise UsageError for options that say nothing of what is asked for."""
    if (model is None) == (bench is None):
        raise UsageError(
            "name either a model, as FILE.py:FACTORY, or networks with --bench"
        )
    context = click.get_current_context()
    mute = _OF_BENCHES if bench is None else _OF_MODELS
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name in mute and source is click.core.ParameterSource.COMMANDLINE:
            other = "a model" if bench is None else "--bench"
            raise UsageError(f"{param.opts[0]} says nothing of {other}; leave it out")


def _hand_over(
    found: Examined, plot: Path | None, force: bool, json_: bool, showing: bool
) -> None:
    from memplan.cli import fuse_report

    for line in found.said:
        show.complaint(line)
    if json_:
        from memplan.cli.fuse_entries import entries

        show.as_json(entries(found))
    else:
        fuse_report.report(found)
        if showing:
            fuse_report.layers(found)
            fuse_report.stacks(found)
    if plot is not None:
        _draw(found, plot, force)


def _draw(found: Examined, path: Path, force: bool) -> None:
    if not any(part.layers for part in found.summary.parts):
        show.complaint(f"no layers of it are known, so {path} was not drawn")
        return
    from memplan.cli.fuse_picture import picture
    from memplan.plotting.save import save

    save(picture(found), path, force=force)
    show.note(f"drew {path}")
