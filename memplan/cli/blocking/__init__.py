"""memplan blocking: least-energy loop nests for convolutions."""

from __future__ import annotations

import click

from memplan.cli.group import LazyGroup

_COMMANDS = {
    "layers": "List the layers, networks and hierarchies that come with memplan.",
    "evaluate": "Count the accesses of one loop nest, and their energy.",
    "optimize": "Find the loop nest of least energy for a memory hierarchy.",
    "codesign": "Find the loop nest and the memories for it together.",
    "network": "Block all layers of a network for one hierarchy.",
    "parallel": "Spread a layer over several cores.",
    "simulate": "Count the misses of real caches, against im2col and GEMM.",
    "emit": "Write a loop nest as C++.",
}


@click.group(
    "blocking",
    cls=LazyGroup,
    commands_help=_COMMANDS,
    package="memplan.cli.blocking",
    epilog="Example: memplan blocking optimize --layer conv4 --memory diannao",
)
def command() -> None:
    """Block the loops of convolutions so that memory takes the least energy.

    A loop nest is a string, innermost loop first: "Fw3 Fh3 X8 C16 X28" walks over
    a 3 x 3 window, then along 8 columns, and so on; extents are cumulative.
    """
