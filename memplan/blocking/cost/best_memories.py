"""The memories of a nest's buffers that take the least energy: a choice, no rule.

Of each tensor any of its buffers may be kept, of the input stripes too, and sliding
buffers in memories that can have them (`counts`), each in any memory that holds it.
Where memories are shared, or there is a budget, tensors compete for bytes; so of each
one every choice is listed that no other beats in energy and bytes, and all are
combined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

_Taken = tuple[int, ...]  # bytes of each memory that is shared


class _Option(NamedTuple):
    """A memory of `pj` an access; pool: that it takes bytes of, or -1; depth: of its
    level, -1 of a memory of the buffer's own."""

    pj: float
    pool: int
    depth: int = -1
    level: str | None = None


@dataclass(frozen=True)
class _Part:
    """Some of one tensor's buffers, inside out: pJ but for what leaves the last; depth:
    of the last one's level, -1 where there are none."""

    pj: float
    taken: _Taken
    chosen: tuple[BufferMemory, ...] = ()
    depth: int = -1


def best_memories(
    traffic: Mapping[Tensor, Traffic], objective: Objective
) -> tuple[BufferMemory, ...]:
    """The buffers that have a memory, each tensor's innermost first; `evaluate` takes
    them as its `choice`. No other choice takes less energy."""
    pools = _pools(objective)
    parts = [_of_tensor(own, objective, pools) for own in traffic.values()]
    best: tuple[BufferMemory, ...] = ()
    least = math.inf
    for found in _combined(parts, pools):
        if found.pj < least:
            best, least = found.chosen, found.pj
    return best


def _pools(objective: Objective) -> tuple[int, ...]:
    """Bytes of the memories that tensors share."""
    if isinstance(objective, Codesign):
        return () if objective.budget is None else (objective.budget,)
    levels = objective.hierarchy.levels
    return tuple(one.capacity(Tensor.INPUT) for one in levels if not one.private)


def _options(tensor: Tensor, buffer: Buffer, objective: Objective) -> Iterator[_Option]:
    """Each memory that holds the buffer."""
    nbytes = buffer.nbytes
    if isinstance(objective, Codesign):
        if nbytes <= objective.curves[tensor].dram_above:
            pool = -1 if objective.budget is None else 0
            yield _Option(objective.curves[tensor](nbytes), pool)
        return
    shared = 0
    for depth, level in enumerate(objective.hierarchy.levels):
        if nbytes <= level.capacity(tensor) and (level.sliding or not buffer.slides):
            pj = objective.hierarchy.price(depth, tensor)
            yield _Option(pj, -1 if level.private else shared, depth, level.name)
        shared += not level.private


def _of_tensor(own: Traffic, objective: Objective, pools: Sequence[int]) -> list[_Part]:
    """What no other choice of this tensor's beats, in energy with main memory's and in
    bytes, by ascending energy."""
    main_pj, fills = objective.main_pj(own.tensor), objective.count_fills
    nothing = _Part(0.0, (0,) * len(pools))
    # Of each buffer the choices that end with it, and what passes out of it.
    ends: list[tuple[float, list[_Part]]] = [(own.demand_words, [nothing])]
    for buffer in own.choices:
        found = []
        for option in _options(own.tensor, buffer, objective):
            filled = buffer.outward_words * option.pj if fills else 0.0
            for outward, parts in ends:
                cost = outward * option.pj + filled
                found += [
                    _extended(p, cost, own.tensor, buffer, option)
                    for p in parts
                    if not p.chosen or _is_outside(option, p)
                ]
        fitting = (p for p in found if _fits(p.taken, pools))
        ends.append((buffer.outward_words, _unbeaten(fitting)))
    return _unbeaten(
        _Part(part.pj + outward * main_pj, part.taken, part.chosen)
        for outward, parts in ends
        for part in parts
    )


def _is_outside(option: _Option, part: _Part) -> bool:
    """Whether a memory may be the next one out: levels keep their order, and one that
    is no cheaper than what is outside of it does not pay."""
    further = option.depth < 0 or part.depth < option.depth
    return further and part.chosen[-1].pj < option.pj


def _extended(
    part: _Part, cost: float, tensor: Tensor, buffer: Buffer, option: _Option
) -> _Part:
    taken = tuple(
        n + buffer.nbytes * (i == option.pool) for i, n in enumerate(part.taken)
    )
    memory = BufferMemory(
        tensor, buffer.begin, buffer.nbytes, option.pj, option.level, buffer.slides
    )
    return _Part(part.pj + cost, taken, (*part.chosen, memory), option.depth)


def _fits(taken: _Taken, pools: Sequence[int]) -> bool:
    return all(n <= most for n, most in zip(taken, pools, strict=True))


def _unbeaten(parts: Iterator[_Part]) -> list[_Part]:
    # At the same energy fewer memories come first: they are enough; so does what does
    # not slide.
    ordered = sorted(parts, key=_simplest)
    if not ordered or not ordered[0].taken:
        return ordered[:1]
    kept: list[_Part] = []
    every = np.array([part.taken for part in ordered])
    rows = np.empty_like(every)  # of those kept
    for part, taken in zip(ordered, every, strict=True):
        if not (rows[: len(kept)] <= taken).all(axis=1).any():
            rows[len(kept)] = taken
            kept.append(part)
    return kept


def _simplest(part: _Part) -> tuple[float, int, int]:
    return part.pj, len(part.chosen), sum(one.slides for one in part.chosen)


def _combined(parts: Sequence[list[_Part]], pools: Sequence[int]) -> Iterator[_Part]:
    """All tensors' choices together that fit."""
    found = [_Part(0.0, (0,) * len(pools))]
    for own in parts:
        both = (
            _Part(
                one.pj + other.pj,
                tuple(a + b for a, b in zip(one.taken, other.taken, strict=True)),
                one.chosen + other.chosen,
            )
            for one in found
            for other in own
        )
        found = _unbeaten(part for part in both if _fits(part.taken, pools))
    yield from found
