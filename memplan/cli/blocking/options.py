"""Options that several blocking commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from memplan.blocking.cost.timed_memories import MINIMIZED
from memplan.blocking.machine.registers import TARGETS
from memplan.blocking.nest.precision import FORMATS
from memplan.cli import arguments

F = TypeVar("F", bound=Callable[..., Any])

OWN = "each buffer has a memory of its own size"
PAPER_DATAPATH = "C16,K16"  # 16 x 16 multipliers

layer = click.option(
    "--layer",
    "layer_text",
    required=True,
    metavar="LAYER",
    help="A layer that memplan blocking layers lists, or its sizes C,K,X,Y,Fw,Fh, "
    "such as 256,512,28,28,3,3. Append ,B8 for a batch, ,G2 for groups of C to K "
    "channels each, ,S2 for a stride.",
)

layers = click.option(
    "--layer",
    "layer_texts",
    required=True,
    multiple=True,
    metavar="LAYER",
    help="A layer that memplan blocking layers lists, or its sizes C,K,X,Y,Fw,Fh; "
    "append ,B8 for a batch, ,G2 for groups of C to K channels each, ,S2 for a "
    "stride. Or all layers of a model: model.py:factory, or model.onnx, with "
    ":batch=8 if it leaves that size open. Repeatable.",
)

string = click.option(
    "--string",
    "string",
    required=True,
    metavar="LOOPS",
    help='Loop nest, innermost first, extents cumulative: "Fw3 Fh3 X8 K64".',
)


def memory(default: str = "") -> Callable[[F], F]:
    """`--memory`, a hierarchy; `default` says what is taken without it."""
    return click.option(
        "--memory",
        metavar="NAME|FILE",
        help="A memory hierarchy that memplan blocking layers lists, or a .toml file; "
        "docs/hierarchies.md describes the file."
        + (f"  [default: {default}]" if default else ""),
    )


budget = click.option(
    "--budget",
    metavar="BYTES",
    help="Largest total size of the memories on the chip, such as 8MiB or 8MB.",
)

precision = arguments.together(
    click.option(
        "--bits",
        metavar="BITS",
        help="Bits of the elements: "
        + ", ".join(FORMATS)
        + ", or input=8,kernel=8,partial=32,output=8. To change part of a format, "
        "append it: int8,partial=16. Memories of the output hold partial "
        "sums.  [default: the hierarchy's, or int16 with partial sums of 16 bits]",
    ),
    click.option(
        "--technology",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A .toml file with areas and the energies of accesses by memory size, of "
        "multiplications and of main memory; see docs/hierarchies.md.  [default: 45 "
        "nm]",
    ),
)

sliding = click.option(
    "--sliding",
    is_flag=True,
    help="Let every memory of the input shift or wrap around, so that a window "
    "fetches only new columns or rows. For a single level, set sliding = true in "
    "the hierarchy's file.",
)

unroll = click.option(
    "--unroll",
    metavar="DIMS",
    default=PAPER_DATAPATH,
    show_default=True,
    help="Number of multipliers along each dimension, such as C16,K16; none: one "
    "multiplier. Some idle at the edge if they do not divide a size.",
)

unroll_or_auto = click.option(
    "--unroll",
    metavar="DIMS|auto",
    default=PAPER_DATAPATH,
    show_default=True,
    help="Number of multipliers along each dimension, such as C16,K16; none: one "
    "multiplier. Some idle at the edge if they do not divide a size. auto: find "
    "the best mapping onto 16 x 16 multipliers; auto:8x32: onto an array with "
    "these sides; auto:256: onto 256 multipliers in any shape.",
)


def minimize(more: str = "") -> Callable[[F], F]:
    """`--minimize`."""
    return click.option(
        "--minimize",
        type=click.Choice(MINIMIZED),
        default=MINIMIZED[0],
        show_default=True,
        help="Energy, cycles, or energy times cycles (edp); the last two need a "
        f"hierarchy with bandwidths. {more}".rstrip(),
    )


search = arguments.together(
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Time limit of a search in seconds; memplan then returns the best nest so "
        "far.  [default: none]",
    ),
    arguments.threads("Number of threads  [default: one per core]", "N"),
)

ray = arguments.ray("search the layers")

output = arguments.together(
    arguments.output(
        "Write a plan file for memplan plot; - is standard output.", metavar="PLAN"
    ),
    arguments.force("the plan if it exists"),
)

pad = click.option(
    "--pad",
    is_flag=True,
    help="Pad planes that would share cache sets in memory.",
)


def target(name: str, said: str, default: str | None = None) -> Callable[[F], F]:
    """An option `name` for the vectors that code is written for."""
    return click.option(
        name,
        type=click.Choice(["native", *TARGETS]),
        default=default,
        show_default=default is not None,
        help=said,
    )


json_ = click.option("--json", "json_", is_flag=True, help="Print JSON.")
