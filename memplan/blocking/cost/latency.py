"""Cycles of a loop nest on a hierarchy with bandwidths: a plain model.

The datapath makes a step a cycle. From the inside out every level then adds what moves
between it and what is outside of it. A level that is not double-buffered stands still
meanwhile: its time is added, one transfer after the other, at the lower of the two
bandwidths. A double-buffered one takes the next tile in and gives the last one back
while it is worked on: the longer of the two counts, apart from the first tile in and
the last one out, which nothing hides. The datapath's own accesses go along with its
steps. At last no port can be busy for longer than all of it takes. Transfers are taken
to be spread evenly: the cycles are those of a hierarchy that never waits for a burst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memplan.blocking.cost.placement import MAIN, Placement
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import DIMS, Tensor, footprint
from memplan.blocking.nest.nest import Nest

DATAPATH = "datapath"  # among stalls; no level is called so


@dataclass(frozen=True)
class Port:
    """A port of a memory and what passes it; tensor: None of one that all share; way:
    "reads", "writes", or "both" where there is but one port."""

    level: str
    tensor: Tensor | None
    way: str
    nbytes: float
    bandwidth: float

    @property
    def cycles(self) -> float:
        """How long it is busy."""
        return self.nbytes / self.bandwidth


@dataclass(frozen=True)
class Latency:
    """steps: cycles of the datapath alone; cycles: with all that it waits for. stalls:
    by level, what the level adds, MAIN where main memory's port is never idle, DATAPATH
    where the datapath's own accesses, to whatever level, take longer than its steps;
    edges: what of that are first tiles in and last ones out. bounded: False where no
    bandwidth is known, so that cycles are the datapath's alone."""

    steps: int
    cycles: float
    stalls: Mapping[str, float]
    edges: float
    ports: tuple[Port, ...]
    bounded: bool = True

    @property
    def staller(self) -> str | None:
        """The level that adds most; None if none adds any."""
        most = max(self.stalls, key=lambda name: self.stalls[name], default=None)
        return most if most is not None and self.stalls[most] > 0 else None


@dataclass(frozen=True)
class _Boundary:
    """Between a tensor's memory, or the datapath, and what is outside of it: depths, -1
    for the datapath; bytes inwards and outwards; of the first tile in, the last out."""

    tensor: Tensor
    inside: int
    outside: int
    inward: float
    outward: float
    first: float = 0.0
    last: float = 0.0

    @property
    def nbytes(self) -> float:
        return self.inward + self.outward


def datapath_steps(nest: Nest) -> int:
    """Cycles that the datapath takes at least, its edges' idle lanes among them."""
    return math.prod(nest.visits(dim, nest.base(dim)) for dim in DIMS)


def datapath_bytes(own: Traffic) -> tuple[float, float]:
    """Bytes of a tensor that the datapath reads, and that it writes."""
    found = _boundary(own, (-1, 0), _passing(own, None), (0.0, 0.0))
    return found.inward, found.outward


def untimed(nest: Nest) -> Latency:
    """Where no bandwidth is known: the datapath's steps alone."""
    steps = datapath_steps(nest)
    return Latency(steps, float(steps), {}, 0.0, (), bounded=False)


def latency(
    nest: Nest,
    traffic: Mapping[Tensor, Traffic],
    placement: Placement,
    hierarchy: Hierarchy,
) -> Latency:
    """Cycles of the nest with its buffers in these levels of `hierarchy`."""
    if not hierarchy.timed:
        return untimed(nest)
    steps = datapath_steps(nest)
    bounds = [
        one
        for tensor, own in traffic.items()
        for one in _boundaries(nest, own, placement, hierarchy)
    ]
    model = _Model(hierarchy, bounds)
    cycles = max(float(steps), model.busiest(-1))
    stalls = {DATAPATH: cycles - steps}
    edges = 0.0
    for depth, level in enumerate(hierarchy.levels):
        before = cycles
        if level.double_buffered:
            first, last = model.edges(depth)
            edges += first + last
            rest = model.busiest(depth) - first - last
            cycles = first + max(cycles, rest) + last
        else:
            cycles += model.alone(depth)
        stalls[level.name] = cycles - before
    ports = tuple(model.ports())
    most = _longest(list(ports))
    stalls[MAIN] = max(most - cycles, 0.0)
    stalls = {name: added for name, added in stalls.items() if added > 0}
    return Latency(steps, max(cycles, most), stalls, edges, ports)


def _boundaries(
    nest: Nest, own: Traffic, placement: Placement, hierarchy: Hierarchy
) -> Iterator[_Boundary]:
    names = [level.name for level in hierarchy.levels]
    inside, held = -1, None
    flow = _passing(own, None)
    for memory in placement[own.tensor]:
        outside = names.index(memory.level)
        edges = _edges(nest, own, held)
        yield _boundary(own, (inside, outside), flow, edges)
        inside, held, flow = outside, memory.outermost, _passing(own, memory.outermost)
    yield _boundary(own, (inside, len(names)), flow, _edges(nest, own, held))


def _passing(own: Traffic, held: Buffer | None) -> tuple[int, int]:
    """Elements inwards and outwards between a buffer, or the datapath, and the rest."""
    return own.served if held is None else (held.fills, held.drains)


def _edges(nest: Nest, own: Traffic, held: Buffer | None) -> tuple[float, float]:
    """Bytes of the first tile of an operand, and of the last one of the output."""
    if held is None:
        return 0.0, 0.0
    if own.tensor is not Tensor.OUTPUT:
        return held.elements * own.bits / 8, 0.0
    last = {dim: nest.layer.size(dim) for dim in DIMS}
    for loop in reversed(nest.loops[held.begin :]):
        last[loop.dim] = (last[loop.dim] - 1) % loop.inner + 1
    return 0.0, footprint(nest.layer, own.tensor, last) * own.last_bits / 8


def _boundary(
    own: Traffic,
    depths: tuple[int, int],
    flow: tuple[int, int],
    edges: tuple[float, float],
) -> _Boundary:
    inwards, outwards = flow
    last = own.alpha if own.tensor is Tensor.OUTPUT else 0
    inward = inwards * own.bits / 8
    outward = ((outwards - last) * own.bits + last * own.last_bits) / 8
    return _Boundary(own.tensor, *depths, inward, outward, *edges)


def _longest(ports: list[Port]) -> float:
    return max((port.cycles for port in ports), default=0.0)


class _Model:
    """Bandwidths, and the bytes that pass each port."""

    def __init__(self, hierarchy: Hierarchy, bounds: list[_Boundary]) -> None:
        self._hierarchy, self._bounds = hierarchy, bounds

    def alone(self, depth: int) -> float:
        """Cycles of all transfers into and out of a level, one after the other."""
        return sum(
            one.nbytes / min(self._rate(one.outside, one), self._rate(depth, one))
            for one in self._outside(depth)
        )

    def busiest(self, depth: int) -> float:
        """Cycles of the port that these transfers keep busy longest."""
        return _longest(self._passed(self._outside(depth)))

    def edges(self, depth: int) -> tuple[float, float]:
        """Cycles of a level's first tiles in, and of its last one out."""
        own = self._outside(depth)
        first = [replace(one, inward=one.first, outward=0.0) for one in own]
        last = [replace(one, inward=0.0, outward=one.last) for one in own]
        return _longest(self._passed(first)), _longest(self._passed(last))

    def _outside(self, depth: int) -> list[_Boundary]:
        return [one for one in self._bounds if one.inside == depth]

    def ports(self) -> list[Port]:
        """All that are used, by level and tensor."""
        return self._passed(self._bounds)

    def _rate(self, depth: int, one: _Boundary) -> float:
        """Bytes a cycle of a memory's port; infinite where it is not known."""
        return math.inf if depth < 0 else self._hierarchy.rate(depth, one.tensor)

    def _passed(self, bounds: list[_Boundary]) -> list[Port]:
        found: dict[tuple[int, Tensor | None, str], list[float]] = {}
        for one in bounds:
            for depth, reads, writes in (
                (one.inside, one.outward, one.inward),
                (one.outside, one.inward, one.outward),
            ):
                rate = self._rate(depth, one)
                if math.isinf(rate):
                    continue
                private = depth < len(self._hierarchy.levels) and (
                    self._hierarchy.levels[depth].private
                )
                owner = one.tensor if private else None
                for way, nbytes in self._split(depth, reads, writes):
                    place = found.setdefault((depth, owner, way), [0.0, rate])
                    place[0] += nbytes
        names = [*(level.name for level in self._hierarchy.levels), MAIN]
        return [
            Port(names[depth], owner, way, nbytes, rate)
            for (depth, owner, way), (nbytes, rate) in sorted(
                found.items(), key=lambda item: (item[0][0], str(item[0][1:]))
            )
            if nbytes
        ]

    def _split(
        self, depth: int, reads: float, writes: float
    ) -> Iterator[tuple[str, float]]:
        if self._hierarchy.ports(depth) == 1:
            yield "both", reads + writes
        else:
            yield "reads", reads
            yield "writes", writes
