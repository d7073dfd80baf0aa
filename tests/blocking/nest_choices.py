"""All loop nests of a small layer, and all choices of buffers, tried one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import DIMS, Layer, Tensor

# Energy, and the bytes it takes of each shared memory.
Choice = tuple[float, tuple[int, ...]]


def all_loops(
    layer: Layer, unroll: Mapping[str, int]
) -> Iterator[list[tuple[str, int]]]:
    """All nests, with loops split into prime factors: a loop and its parts side by
    side have the same buffers. The window is one block; groups come outermost."""
    sized = layer.padded(unroll)
    reached = {dim: min(unroll.get(dim, 1), sized.size(dim)) for dim in DIMS}
    groups = [("G", sized.G)] if reached["G"] < sized.G else []
    for loops in _orders(sized, reached):
        yield loops + groups


def _orders(
    layer: Layer, reached: Mapping[str, int]
) -> Iterator[list[tuple[str, int]]]:
    ended = True
    for dim in "XYCKB":
        left = layer.size(dim) // reached[dim]
        for prime in (2, 3, 5):
            if left % prime == 0:
                ended = False
                extent = reached[dim] * prime
                for rest in _orders(layer, {**reached, dim: extent}):
                    yield [(dim, extent), *rest]
    window = {dim: layer.size(dim) for dim in ("Fw", "Fh")}
    block = [(dim, n) for dim, n in window.items() if n > reached[dim]]
    if block:
        ended = False
        for rest in _orders(layer, {**reached, **window}):
            yield [*block, *rest]
    if ended:
        yield []


def merged(loops: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """The loops, with those of one dimension side by side as one or as several: a
    buffer slides along one."""
    if not loops:
        yield []
        return
    for rest in merged(loops[1:]):
        yield [loops[0], *rest]
        if rest and rest[0][0] == loops[0][0]:
            yield rest


def least_energy(traffic: Mapping[Tensor, Traffic], objective: Objective) -> float:
    """The least energy over all choices of buffers and memories, one nest's."""
    choices = [_choices(own, objective) for own in traffic.values()]
    room: Sequence[int] = ()
    if isinstance(objective, Fixed):
        levels = objective.hierarchy.levels
        room = [1 << 40 if one.shared is None else one.shared for one in levels]
    elif objective.budget is not None:
        room = (objective.budget,)
    if not any(any(taken) for own in choices for _, taken in own):
        return sum(min(own)[0] for own in choices)
    return min(
        sum(energy for energy, _ in combination)
        for combination in itertools.product(*map(_pareto, choices))
        if all(
            sum(taken[i] for _, taken in combination) <= most
            for i, most in enumerate(room)
        )
    )


def _pareto(choices: list[Choice]) -> list[Choice]:
    kept: list[Choice] = []
    for energy, taken in sorted(choices):
        if not any(
            all(a <= b for a, b in zip(own, taken, strict=True)) for _, own in kept
        ):
            kept.append((energy, taken))
    return kept


def _choices(own: Traffic, objective: Objective) -> list[Choice]:
    """Every subset of one tensor's buffers, each in every memory that it fits."""
    found: list[Choice] = []
    for many in range(len(own.choices) + 1):
        for chosen in itertools.combinations(own.choices, many):
            for prices, taken in _memories(own, chosen, objective):
                energy, flow = 0.0, _bits(own, own.demand) / 16
                for buffer, pj in zip(chosen, prices, strict=True):
                    outward = _bits(own, buffer.outward) / 16
                    energy += (flow + _fills(objective) * outward) * pj
                    flow = outward
                found.append((energy + flow * _dram_pj(objective), taken))
    return found


def _bits(own: Traffic, passed: int) -> int:
    """Of elements that pass a boundary: an output's are partial sums but for one
    write of each element."""
    if own.tensor is not Tensor.OUTPUT:
        return own.bits * passed
    return own.bits * (passed - own.alpha) + own.last_bits * own.alpha


def _memories(
    own: Traffic, chosen: Sequence[Buffer], objective: Objective
) -> Iterator[tuple[list[float], tuple[int, ...]]]:
    """Prices of one tensor's buffers, and what they take of shared memories."""
    tensor = own.tensor
    sizes = [-(-own.bits * buffer.elements // 8) for buffer in chosen]
    if isinstance(objective, Codesign):
        curve = objective.curves[tensor]
        if all(size <= curve.dram_above for size in sizes):
            limited = objective.budget is not None
            yield [curve(size) for size in sizes], (sum(sizes),) * limited
        return
    levels = objective.hierarchy.levels
    for depths in itertools.combinations(range(len(levels)), len(sizes)):
        placed = list(zip(sizes, depths, strict=True))
        slid = [d for one, d in zip(chosen, depths, strict=True) if one.slides]
        if not all(levels[depth].sliding for depth in slid):
            continue
        if any(size > levels[depth].capacity(tensor) for size, depth in placed):
            continue
        taken = [0] * len(levels)
        for size, depth in placed:
            if not levels[depth].private:
                taken[depth] = size
        prices = [objective.hierarchy.price(depth, tensor) for depth in depths]
        yield prices, tuple(taken)


def _fills(objective: Objective) -> bool:
    if isinstance(objective, Codesign):
        return objective.count_fills
    return objective.hierarchy.count_fills


def _dram_pj(objective: Objective) -> float:
    if isinstance(objective, Codesign):
        return objective.curves[Tensor.INPUT].dram_pj
    return objective.hierarchy.dram_pj
