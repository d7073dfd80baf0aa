"""memplan blocking emit"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.nest import Nest
from memplan.blocking.run.cache import Layout, padded
from memplan.blocking.run.emit import compiler_flags, emit
from memplan.cli import arguments, show
from memplan.cli.blocking import options
from memplan.files import STDOUT, refuse_overwrite, write_bytes


@click.command("emit")
@options.nest
@options.cache("Cache hierarchy for --pad and for blocking the matrix product.")
@options.pad
@options.target(
    "--target",
    default="native",
    said="Vectors to optimize for; the code also compiles for others.",
)
@arguments.output("C++ file to write.  [default: standard output]")
@arguments.force("the file if it exists")
def command(
    nest: Nest, cache: str, pad: bool, target: str, output: Path | None, force: bool
) -> None:
    """Write a loop nest as one C++ file that computes with floats.

    The compiled program compares its result with a direct convolution and exits 1
    if they differ. It prints its time beside that of im2col with a matrix product.

    The code keeps sums in vector registers over the innermost loops along C, Fw and
    Fh. The register tile is --unroll, if that is a tile of X, Y and whole vectors
    of K that fits, as optimize --for-code finds. Otherwise memplan chooses the best
    tile, and turns --unroll into the innermost loops.

    \b
    Example: memplan blocking emit --layer conv5 --unroll X14,K32 -o conv5.cpp \\
      --string "Fw3 Fh3 C8 X28 Y14 C256 K64 Y28 K512"
    """
    layer, hierarchy = nest.layer, load_hierarchy(cache)
    layout = padded(layer, Layout.dense(layer), hierarchy) if pad else None
    path = output or STDOUT
    refuse_overwrite(path, force)
    text = emit(layer, nest, layout=layout, hierarchy=hierarchy, target=target)
    write_bytes(path, text.encode("utf-8"))
    if path == STDOUT:
        return
    show.note(f"wrote {path}")
    # Without a suffix the compiler must be told what it is, and where else to write.
    built = path.with_suffix("" if path.suffix else ".out")
    program = shlex.quote(str(built))
    source = ("" if path.suffix else "-x c++ ") + shlex.quote(str(path))
    flags = " ".join(compiler_flags(target))
    show.line(f"  next: c++ {flags} {source} -o {program}", err=True)
