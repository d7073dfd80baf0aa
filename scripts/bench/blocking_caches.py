"""The paper's convolutions in simulated caches, blocked and by a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.run.cache import simulate

MACHINE = "xeon-e5645"
# Found with half of each cache's capacity, and rows of whole lines innermost.
NESTS = {
    "conv1": "Fw11 Fh11 X256 K32 Y2 K48 C32 Y32 K96 C256 K192 Y128 Y256 K384",
    "conv2": "Fw9 Fh9 X100 Y5 K24 C32 Y375 K48 X500",
    "conv3": "Fw4 Fh4 C6 Y8 X32 K40 Y32 C108 K200",
    "conv4": "Fw3 Fh3 C8 X56 Y4 K64 Y7 C128 Y56 K256",
    "conv5": "Fw3 Fh3 C16 X28 Y4 K64 C32 Y28 C256 K512",
}


@dataclass(frozen=True)
class CacheCounts:
    """Accesses to L2 and L3, of the part that was simulated; against_model: misses of
    L1 and L2 over those that the model gives."""

    name: str
    share: float
    blocked: tuple[int, int]
    gemm: tuple[int, int]
    against_model: tuple[float, float]


def cache_counts() -> list[CacheCounts]:
    """Every layer, with planes padded so that they do not share sets."""
    machine = load_hierarchy(MACHINE)
    found = []
    for name, string in NESTS.items():
        layer = PAPER_LAYERS[name]
        run = simulate(layer, parse_nest(string, layer), machine, pad=True)
        assert run.gemm is not None
        own = [level.misses for level in run.blocked]
        other = [level.misses for level in run.gemm]
        found.append(
            CacheCounts(
                layer.name,
                run.share,
                (own[0], own[1]),
                (other[0], other[1]),
                (own[0] / run.expected[0], own[1] / run.expected[1]),
            )
        )
    return found
