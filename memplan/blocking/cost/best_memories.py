"""The memories of a nest's buffers that take the least energy: a choice, no rule.

Of each tensor any of its buffers may be kept, each in any memory that holds it. Where
memories are shared, or there is a budget, tensors compete for bytes; so of each one
every choice is listed that no other beats in energy and bytes, and all are combined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

_Taken = tuple[int, ...]  # bytes of each memory that is shared


@dataclass(frozen=True)
class _Part:
    """Some of one tensor's buffers, inside out: pJ but for what leaves the last."""

    pj: float
    taken: _Taken
    chosen: tuple[BufferMemory, ...] = ()


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


def _options(
    tensor: Tensor, nbytes: int, objective: Objective
) -> Iterator[tuple[float, int]]:
    """(pJ, number of the pool or -1) of each memory that holds so many bytes."""
    if isinstance(objective, Codesign):
        if nbytes <= objective.curves[tensor].dram_above:
            pool = -1 if objective.budget is None else 0
            yield objective.curves[tensor](nbytes), pool
        return
    shared = 0
    for depth, level in enumerate(objective.hierarchy.levels):
        if nbytes <= level.capacity(tensor):
            yield (
                objective.hierarchy.price(depth, tensor),
                -1 if level.private else shared,
            )
        shared += not level.private


def _of_tensor(own: Traffic, objective: Objective, pools: Sequence[int]) -> list[_Part]:
    """What no other choice of this tensor's beats, in energy with main memory's and in
    bytes, by ascending energy."""
    main_pj, fills = objective.main_pj(own.tensor), objective.count_fills
    nothing = _Part(0.0, (0,) * len(pools))
    # Of each buffer the choices that end with it, and what passes out of it.
    ends: list[tuple[float, list[_Part]]] = [(own.demand_words, [nothing])]
    for buffer in own.buffers:
        found = []
        for pj, pool in _options(own.tensor, buffer.nbytes, objective):
            filled = buffer.outward_words * pj if fills else 0.0
            for outward, parts in ends:
                cost = outward * pj + filled
                found += [
                    _extended(p, cost, own.tensor, buffer, pj, pool)
                    for p in parts
                    # One that is no cheaper than what is outside of it does not pay.
                    if not p.chosen or p.chosen[-1].pj < pj
                ]
        fitting = (p for p in found if _fits(p.taken, pools))
        ends.append((buffer.outward_words, _unbeaten(fitting)))
    return _unbeaten(
        _Part(part.pj + outward * main_pj, part.taken, part.chosen)
        for outward, parts in ends
        for part in parts
    )


def _extended(
    part: _Part, cost: float, tensor: Tensor, buffer: Buffer, pj: float, pool: int
) -> _Part:
    taken = tuple(n + buffer.nbytes * (i == pool) for i, n in enumerate(part.taken))
    memory = BufferMemory(tensor, buffer.begin, buffer.nbytes, pj)
    return _Part(part.pj + cost, taken, (*part.chosen, memory))


def _fits(taken: _Taken, pools: Sequence[int]) -> bool:
    return all(n <= most for n, most in zip(taken, pools, strict=True))


def _unbeaten(parts: Iterator[_Part]) -> list[_Part]:
    kept: list[_Part] = []
    # At the same energy fewer memories come first: they are enough.
    for part in sorted(parts, key=lambda one: (one.pj, len(one.chosen))):
        if not any(_fits(one.taken, part.taken) for one in kept):
            kept.append(part)
    return kept


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
