"""Options that several blocking commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from memplan.blocking.cost.timed_memories import MINIMIZED
from memplan.blocking.machine.registers import TARGETS
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.precision import FORMATS, parse_precision
from memplan.blocking.search.result import Options
from memplan.cli import arguments
from memplan.cli.blocking import meanings
from memplan.cli.blocking.results import Output
from memplan.units import parse_bytes

F = TypeVar("F", bound=Callable[..., Any])

OWN = "  [default: each buffer has a memory of its own size]"
PAPER_DATAPATH = "C16,K16"  # 16 x 16 multipliers

layer = click.option(
    "--layer",
    type=parse_layer,
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

_string = click.option(
    "--string",
    required=True,
    metavar="LOOPS",
    help='Loop nest, innermost first, extents cumulative: "Fw3 Fh3 X8 K64".',
)


def _unroll(metavar: str, more: str = "") -> Callable[[F], F]:
    return click.option(
        "--unroll",
        metavar=metavar,
        default=PAPER_DATAPATH,
        help="Number of multipliers along each dimension, such as C16,K16; none: one "
        f"multiplier. Some idle at the edge if they do not divide a size.{more}",
    )


unroll_or_auto = _unroll(
    "DIMS|auto",
    " auto: find the best mapping onto 16 x 16 multipliers; auto:8x32: onto an array "
    "with these sides; auto:256: onto 256 multipliers in any shape.",
)
# A nest that is given, as `nest`.
nest = arguments.gathered("nest", meanings.nest, layer, _string, _unroll("DIMS"))

_budget = click.option(
    "--budget",
    type=parse_bytes,
    metavar="BYTES",
    help="Largest total size of the memories on the chip, such as 8MiB or 8MB.",
)

_precision = arguments.together(
    click.option(
        "--bits",
        type=parse_precision,
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
    click.option(
        "--sliding",
        is_flag=True,
        help="Let every memory of the input shift or wrap around, so that a window "
        "fetches only new columns or rows. For a single level, set sliding = true in "
        "the hierarchy's file.",
    ),
)

# Memories yet to be chosen, as `objective`.
own_memories = arguments.gathered(
    "objective", meanings.own_memories, _budget, _precision
)


def machine(default: str = "") -> Callable[[F], F]:
    """A hierarchy, or memories yet to be chosen, as `objective`."""
    memory = click.option(
        "--memory",
        metavar="NAME|FILE",
        help="A memory hierarchy that memplan blocking layers lists, or a .toml file; "
        f"docs/hierarchies.md describes the file.{default}",
    )
    return arguments.gathered(
        "objective", meanings.machine, memory, _budget, _precision
    )


def minimize(more: str = "") -> Callable[[F], F]:
    """`--minimize`."""
    return click.option(
        "--minimize",
        type=click.Choice(MINIMIZED),
        default=MINIMIZED[0],
        help="Energy, cycles, or energy times cycles (edp); the last two need a "
        f"hierarchy with bandwidths. {more}".rstrip(),
    )


# How to search, as `how`, with other options that are fields of Options.
search = arguments.gathered(
    "how",
    Options,
    click.option(
        "--time-limit",
        type=arguments.Number(),
        metavar="S",
        help="Time limit of a search in seconds; memplan then returns the best nest so "
        "far.  [default: none]",
    ),
    arguments.threads("Number of threads  [default: one per core]", "N"),
)

ray = arguments.ray("search the layers")
json_ = click.option("--json", "json_", is_flag=True, help="Print JSON.")

# Where the result goes, as `output`.
output = arguments.gathered(
    "output",
    Output,
    arguments.output(
        "Write a plan file for memplan plot; - is standard output.", metavar="PLAN"
    ),
    arguments.force("the plan if it exists"),
    json_,
)


def cache(help_text: str) -> Callable[[F], F]:
    """`--cache`, a hierarchy of caches."""
    return click.option(
        "--cache", default=meanings.CACHES, metavar="NAME|FILE", help=help_text
    )


pad = click.option(
    "--pad",
    is_flag=True,
    help="Pad planes that would share cache sets in memory.",
)


def target(name: str, said: str, default: str | None = None) -> Callable[[F], F]:
    """An option `name` for the vectors that code is written for, as `target`."""
    kind = click.Choice(["native", *TARGETS])
    return click.option(name, "target", type=kind, default=default, help=said)
