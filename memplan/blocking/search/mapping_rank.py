"""Which of two nests around different spatial mappings is taken."""

from __future__ import annotations

from memplan.blocking.nest.layer import DIMS
from memplan.blocking.search.result import Result

_SAME = 1e-9  # relative


def value_of(found: Result) -> float:
    """What was minimized, of a result."""
    return found.energy if found.value is None else found.value


def second_of(found: Result) -> float:
    """What counts where values are the same: energy, or steps."""
    if found.minimized == "cycles":
        return found.energy
    return float(_steps(found))


def _steps(found: Result) -> int:
    nest = found.nest
    steps = 1
    for dim in DIMS:
        steps *= -(-nest.layer.size(dim) // nest.base(dim))
    return steps


def better(one: Result, other: Result) -> bool:
    """Whether `one` is better than `other`: in what was minimized; else in what counts
    next, then in steps, dimensions of its mapping, and multipliers."""
    for key in (value_of, second_of):
        mine, others = key(one), key(other)
        if abs(mine - others) > _SAME * others:
            return mine < others
    return _plain(one) < _plain(other)


def _plain(found: Result) -> tuple[int, int, int]:
    counts = [found.nest.base(dim) for dim in DIMS]
    lanes = 1
    for count in counts:
        lanes *= count
    return _steps(found), sum(count > 1 for count in counts), lanes
