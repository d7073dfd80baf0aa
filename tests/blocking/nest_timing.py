"""Loop nests walked step by step, with a clock; and hierarchies with bandwidths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from memplan.blocking.cost.placement import BufferMemory, Placement
from memplan.blocking.machine.energy import table_3
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import DIMS, Tensor, footprint
from memplan.blocking.nest.nest import Nest


def walk(nest: Nest, end: int) -> Iterator[tuple[int, dict[str, tuple[int, int]]]]:
    """Every iteration of the loops from `end` outwards: the number of datapath steps
    before it, and what is left to be covered of each dimension, (begin, size)."""

    def inside(
        place: int, box: Mapping[str, tuple[int, int]]
    ) -> Iterator[dict[str, tuple[int, int]]]:
        if place < end:
            yield dict(box)
            return
        loop = nest.loops[place]
        begin, size = box[loop.dim]
        for at in range(0, size, loop.inner):
            part = (begin + at, min(loop.inner, size - at))
            yield from inside(place - 1, {**box, loop.dim: part})

    before = 0
    whole = {dim: (0, nest.layer.size(dim)) for dim in DIMS}
    for box in inside(len(nest.loops) - 1, whole):
        yield before, box
        steps = 1
        for dim in DIMS:
            steps *= -(-box[dim][1] // nest.base(dim))
        before += steps


def tiles(
    nest: Nest, tensor: Tensor, buffer: Buffer
) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Each visit of a buffer's tiles: the first step, the elements, which results."""
    found = []
    for before, box in walk(nest, buffer.end):
        sizes = {dim: box[dim][1] for dim in DIMS}
        elements = footprint(nest.layer, tensor, sizes)
        where = tuple(box[dim] for dim in ("X", "Y", "K", "B", "G"))
        found.append((before, elements, where))
    return found


def serial_cycles(nest: Nest, placement: Placement, at: Hierarchy) -> float:
    """A clock that stands at every transfer into or out of every memory."""
    names = [level.name for level in at.levels]
    clock = 0.0
    for _ in walk(nest, 0):
        clock += 1.0
    for tensor, memories in placement.items():
        bits, last_bits = at.precision.held(tensor), at.precision.last(tensor)
        for place, memory in enumerate(memories):
            inside = at.levels[names.index(memory.level)].bandwidth[tensor]
            outside = at.dram_bandwidth or 0.0
            if place + 1 < len(memories):
                other = at.levels[names.index(memories[place + 1].level)]
                outside = other.bandwidth[tensor]
            rate = min(inside, outside)
            visits = tiles(nest, tensor, memory.outermost)
            left: dict[object, int] = {}
            for _, _, where in visits:
                left[where] = left.get(where, 0) + 1
            seen: set[object] = set()
            for _, elements, where in visits:
                if tensor is not Tensor.OUTPUT:
                    clock += elements * bits / 8 / rate
                    continue
                if where in seen:  # partial sums come back
                    clock += elements * bits / 8 / rate
                seen.add(where)
                left[where] -= 1
                wide = bits if left[where] else last_bits
                clock += elements * wide / 8 / rate
    return clock


def overlapped_cycles(
    nest: Nest,
    buffers: Mapping[Tensor, Buffer],
    bits: Mapping[Tensor, int],
    rate: float,
) -> float:
    """One double-buffered level, and main memory with one port. When a tile's first
    step begins, the other half is given back, and takes the next tile in; the port
    serves what is needed first."""
    starts: dict[int, list[tuple[Tensor, int]]] = {}
    visits = {tensor: tiles(nest, tensor, own) for tensor, own in buffers.items()}
    for tensor, own in visits.items():
        for number, (first, _, _) in enumerate(own):
            starts.setdefault(first, []).append((tensor, number))
    port = _Port(visits, bits, rate)
    clock = 0.0
    for tensor in visits:
        port.load(tensor, 0, clock)
    for step in range(sum(1 for _ in walk(nest, 0))):
        clock = max(clock, port.served_until(step))
        for tensor, number in starts.get(step, ()):
            port.drain(tensor, number - 1, clock)
            port.load(tensor, number + 1, clock)
        clock += 1
    for tensor, own in visits.items():
        port.drain(tensor, len(own) - 1, clock)
    return max(clock, port.served_until(None))


class _Port:
    """Serves one transfer after the other, those that are needed first."""

    def __init__(
        self,
        visits: Mapping[Tensor, list[tuple[int, int, tuple[tuple[int, int], ...]]]],
        bits: Mapping[Tensor, int],
        rate: float,
    ) -> None:
        self._visits, self._bits, self._rate = visits, bits, rate
        self._waiting: list[tuple[float, int, float, float]] = []
        self._free = 0.0

    def load(self, tensor: Tensor, number: int, now: float) -> None:
        own = self._visits[tensor]
        if number >= len(own):
            return
        first, _, where = own[number]
        if tensor is Tensor.OUTPUT and all(one[2] != where for one in own[:number]):
            return  # there are no partial sums yet
        self._ask(tensor, number, first, now)

    def drain(self, tensor: Tensor, number: int, now: float) -> None:
        own = self._visits[tensor]
        if tensor is Tensor.OUTPUT and number >= 0:
            # The half is needed for the tile after the next.
            needed = own[number + 2][0] if number + 2 < len(own) else float("inf")
            self._ask(tensor, number, needed, now)

    def _ask(self, tensor: Tensor, number: int, needed: float, now: float) -> None:
        cycles = self._visits[tensor][number][1] * self._bits[tensor] / 8 / self._rate
        self._waiting.append((needed, len(self._waiting), now, cycles))

    def served_until(self, step: int | None) -> float:
        """When all that is needed for a step, or all at last, is done."""
        self._waiting.sort()
        done = 0.0
        while self._waiting and (step is None or self._waiting[0][0] <= step):
            _, _, asked, cycles = self._waiting.pop(0)
            done = self._free = max(self._free, asked) + cycles
        return done


def timed_hierarchy(rng: random.Random) -> Hierarchy:
    """One to three levels of a few bytes, with bandwidths, ports and halves."""
    sizes = sorted(rng.sample((8, 12, 20, 32, 48, 80, 128), rng.choice((1, 2, 3))))
    levels = []
    for depth, held in enumerate(sizes):
        double = rng.random() < 0.5
        nbytes = held * 2 if double else held
        pj = {tensor: (depth + 1) * rng.uniform(0.5, 1) for tensor in Tensor}
        private = rng.random() < 0.6
        rates = [rng.choice((1.0, 2.0, 4.0, 8.0)) for _ in Tensor]
        if not private:
            rates = rates[:1] * 3
        levels.append(
            Level(
                f"L{depth}",
                None if private else nbytes,
                dict.fromkeys(Tensor, nbytes) if private else None,
                pj,
                bandwidth=dict(zip(Tensor, rates, strict=True)),
                ports=rng.choice((1, 2)),
                double_buffered=double,
            )
        )
    curves = {tensor: table_3(256) for tensor in Tensor}
    return Hierarchy(
        "tiny",
        "",
        "",
        tuple(levels),
        curves,
        20.0,
        1.0,
        rng.random() < 0.5,
        dram_bandwidth=rng.choice((0.5, 1.0, 2.0, 4.0)),
        dram_ports=rng.choice((1, 2)),
    )


def all_choices(
    traffic: Mapping[Tensor, Traffic], hierarchy: Hierarchy
) -> Iterator[tuple[BufferMemory, ...]]:
    """Every choice of buffers and levels that fits, one buffer a tensor and level."""
    own = [list(_of_tensor(one, hierarchy)) for one in traffic.values()]
    for combination in itertools.product(*own):
        chosen = [one for part in combination for one in part]
        if _fits(chosen, hierarchy):
            yield tuple(chosen)


def _of_tensor(
    own: Traffic, hierarchy: Hierarchy
) -> Iterator[tuple[BufferMemory, ...]]:
    levels = hierarchy.levels
    for many in range(min(len(own.choices), len(levels)) + 1):
        for buffers in itertools.combinations(own.choices, many):
            for depths in itertools.combinations(range(len(levels)), many):
                placed = list(zip(buffers, depths, strict=True))
                if all(b.nbytes <= levels[d].capacity(own.tensor) for b, d in placed):
                    yield tuple(
                        BufferMemory(
                            own.tensor,
                            b.begin,
                            b.nbytes,
                            hierarchy.price(d, own.tensor),
                            levels[d].name,
                        )
                        for b, d in placed
                    )


def _fits(chosen: Sequence[BufferMemory], hierarchy: Hierarchy) -> bool:
    for level in hierarchy.levels:
        if not level.private:
            held = sum(one.nbytes for one in chosen if one.level == level.name)
            if held > level.capacity(Tensor.INPUT):
                return False
    return True
