"""The memories of a nest's buffers where time counts, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.latency import Latency, latency
from memplan.blocking.cost.objective import Choice, Fixed
from memplan.blocking.cost.placement import BufferMemory, level_of
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError

_WORD_BYTES = 2
NOTHING = 1e-12  # of the largest price; prices are above 0


@dataclass(frozen=True)
class Weights:
    """Cycles a byte that memories serve, by depth (main memory's is the last) and
    tensor. adds: whether they come on top of the datapath's steps, if every tensor is
    kept in the levels inside of those with a weight."""

    by_depth: tuple[Mapping[Tensor, float], ...]
    adds: bool

    def combined(self, hierarchy: Hierarchy, worth: float) -> Hierarchy:
        """The hierarchy with energies raised by `worth` pJ a cycle.

        Where fills are charged, a level's price is paid for what is written into it,
        too. That passes its port as well, but is not added to the steps once more; so
        of what adds, only main memory's weights stay then.
        """
        if not (self.adds and hierarchy.count_fills):
            return self._priced(hierarchy, worth, 1.0)
        none = dict.fromkeys(Tensor, 0.0)
        rows = (*(none for _ in hierarchy.levels), self.by_depth[-1])
        return replace(self, by_depth=rows)._priced(hierarchy, worth, 1.0)

    def alone(self, hierarchy: Hierarchy) -> Hierarchy:
        """The hierarchy with cycles for energies, and next to nothing for none."""
        return self._priced(hierarchy, 1.0, 0.0)

    def _priced(self, hierarchy: Hierarchy, worth: float, energy: float) -> Hierarchy:
        most = max(w for own in self.by_depth for w in own.values()) or 1.0
        levels: list[Level] = []
        for depth, level in enumerate(hierarchy.levels):
            least = NOTHING * most * (1 + depth / 16)
            pj = {
                tensor: energy * hierarchy.price(depth, tensor)
                + worth * max(_WORD_BYTES * self.by_depth[depth][tensor], least)
                for tensor in Tensor
            }
            levels.append(replace(level, pj=pj))
        outside = {
            tensor: energy * hierarchy.main_pj(tensor)
            + worth * max(_WORD_BYTES * weight, 2 * NOTHING * most)
            for tensor, weight in self.by_depth[-1].items()
        }
        counts = hierarchy.count_fills and energy > 0
        priced = replace(hierarchy, levels=tuple(levels), count_fills=counts)
        return replace(priced, dram_by_tensor=outside)


def weights_of(hierarchy: Hierarchy) -> list[Weights]:
    """Those that bound a nest's cycles on this hierarchy: main memory's port first."""
    if not hierarchy.timed:
        return []
    found = [*_ports(hierarchy), *_added(hierarchy)]
    return [one for one in found if any(any(own.values()) for own in one.by_depth)]


def _ports(hierarchy: Hierarchy) -> Iterator[Weights]:
    """One for each port, and one for the mean of all. Of two ports one has at least
    half of what passes both."""
    last = len(hierarchy.levels)
    found: list[Weights] = []
    for depth in range(last, -1, -1):
        level = None if depth == last else hierarchy.levels[depth]
        groups: list[tuple[Tensor, ...]] = [tuple(Tensor)]
        if level is not None and level.private:
            groups = [(tensor,) for tensor in Tensor]
        for group in groups:
            rows = [dict.fromkeys(Tensor, 0.0) for _ in range(last + 1)]
            for tensor in group:
                rate = hierarchy.rate(depth, tensor) * hierarchy.ports(depth)
                rows[depth][tensor] = 1 / rate
            if any(rows[depth].values()):
                found.append(Weights(tuple(rows), adds=False))
    yield from found
    if len(found) > 1:
        mean = [
            {t: sum(w.by_depth[i][t] for w in found) / len(found) for t in Tensor}
            for i in range(last + 1)
        ]
        yield Weights(tuple(mean), adds=False)


def _added(hierarchy: Hierarchy) -> Iterator[Weights]:
    """What is added as long as levels are not double-buffered, from the inside out."""
    rows = [dict.fromkeys(Tensor, 0.0) for _ in range(len(hierarchy.levels) + 1)]
    for depth in range(1, len(rows)):
        if hierarchy.levels[depth - 1].double_buffered:
            break
        for tensor in Tensor:
            inside = max(hierarchy.rate(i, tensor) for i in range(depth))
            rate = min(hierarchy.rate(depth, tensor), inside)
            rows[depth][tensor] = 1 / rate
    yield Weights(tuple(rows), adds=True)


MINIMIZED = ("energy", "cycles", "edp")
_WORTHS = (0.1, 1.0, 10.0)  # of a cycle, in units of energy over cycles


@dataclass(frozen=True)
class Timed:
    """A nest in the memories of `choice`: pJ of all accesses and of multiplications,
    and the cycles."""

    nest: Nest
    choice: tuple[BufferMemory, ...]
    energy: float
    mac_pj: float
    latency: Latency

    @property
    def cycles(self) -> float:
        """Of the whole layer."""
        return self.latency.cycles

    @property
    def edp(self) -> float:
        """Energy, with that of the multiplications, times cycles."""
        return (self.energy + self.mac_pj) * self.cycles

    def value(self, minimize: str) -> float:
        """What is to be as little as can be, one of MINIMIZED."""
        return {"energy": self.energy, "cycles": self.cycles, "edp": self.edp}[minimize]

    def rank(self, minimize: str) -> tuple[float, float]:
        """The same, and at equal values the rest."""
        other = self.energy if minimize == "cycles" else self.cycles
        return self.value(minimize), other


@dataclass(frozen=True)
class FrontPoint:
    """A nest that no other one found beats in energy (pJ) and cycles both."""

    energy: float
    cycles: float
    string: str


def check_minimized(minimize: str, machine: object, front: bool = False) -> None:
    """Raises UsageError where it is none of MINIMIZED, or where it, or a front, needs
    bandwidths and there are none: then cycles are the datapath's, and every nest has
    the same."""
    if minimize not in MINIMIZED:
        raise UsageError(f"{minimize!r} cannot be minimized: {', '.join(MINIMIZED)}")
    if minimize == "energy" and not front:
        return
    if not isinstance(machine, Fixed) or not machine.hierarchy.timed:
        asked = f"to minimize {minimize}" if minimize != "energy" else "a front"
        raise UsageError(
            f"{asked} takes a hierarchy that gives a bandwidth; without "
            "one all nests take the datapath's cycles: give --memory a .toml file with "
            "bandwidth or dram_bandwidth, see docs/hierarchies.md"
        )


def timed(nest: Nest, machine: Fixed, choice: Choice) -> Timed:
    """The nest in these memories."""
    traffic = machine.traffic(nest)
    placement = machine.place(traffic, choice)
    energy = sum(share.pj for share in machine.shares(traffic, placement))
    found = latency(nest, traffic, placement, machine.hierarchy)
    mac_pj = nest.layer.macs * machine.mac_pj
    return Timed(nest, tuple(choice), energy, mac_pj, found)


def ways(nest: Nest, machine: Fixed) -> list[Timed]:
    """The nest in the memories that take the least energy, the fewest cycles by each of
    the sums that bound them, and the least of both together."""
    traffic = machine.traffic(nest)
    first = timed(nest, machine, best_memories(traffic, machine))
    found = {first.choice: first}
    for hierarchy in _priced(first, machine.hierarchy):
        chosen = best_memories(traffic, Fixed(hierarchy))
        choice = repriced(chosen, hierarchy, machine.hierarchy)
        if choice not in found:
            found[choice] = timed(nest, machine, choice)
    return list(found.values())


def best_ways(nest: Nest, machine: Fixed, minimize: str) -> Timed:
    """That of `ways` that takes the least, after its memories were changed, a tensor's
    at a time, for as long as that helps."""
    best = min(ways(nest, machine), key=lambda one: one.rank(minimize))
    if minimize == "energy":
        return best
    traffic = machine.traffic(nest)
    choices = {t: list(_choices(own, machine)) for t, own in traffic.items()}
    failed = 0
    while failed < len(choices):
        for tensor, own in choices.items():
            rest = tuple(one for one in best.choice if one.tensor is not tensor)
            tried = [best]
            for part in own:
                if _fits((*rest, *part), machine.hierarchy):
                    tried.append(timed(nest, machine, (*rest, *part)))
            found = min(tried, key=lambda one: one.rank(minimize))
            failed = 0 if found is not best else failed + 1
            best = found
    return best


def _choices(own: Traffic, machine: Fixed) -> Iterator[tuple[BufferMemory, ...]]:
    """One tensor's buffers in levels: each in one, further out from the inside."""
    hierarchy, tensor = machine.hierarchy, own.tensor
    levels = hierarchy.levels
    useful = [buffer for buffer in own.choices if buffer.reuses]
    for number in range(min(len(useful), len(levels)) + 1):
        for buffers in combinations(useful, number):
            for depths in combinations(range(len(levels)), number):
                pairs = list(zip(buffers, depths, strict=True))
                if all(_holds(levels[d], tensor, b) for b, d in pairs):
                    yield tuple(
                        BufferMemory(
                            tensor,
                            buffer.begin,
                            buffer.nbytes,
                            hierarchy.price(depth, tensor),
                            levels[depth].name,
                            buffer.slides,
                        )
                        for buffer, depth in pairs
                    )


def _holds(level: Level, tensor: Tensor, buffer: Buffer) -> bool:
    return buffer.nbytes <= level.capacity(tensor) and (
        level.sliding or not buffer.slides
    )


def _fits(choice: Choice, hierarchy: Hierarchy) -> bool:
    """Whether shared levels hold all that is to be in them."""
    for level in hierarchy.levels:
        if level.private:
            continue
        held = [one for one in choice if level_of(one, hierarchy) == level.name]
        if sum(one.nbytes for one in held) > level.capacity(Tensor.INPUT):
            return False
    return True


def _priced(first: Timed, hierarchy: Hierarchy) -> Iterator[Hierarchy]:
    for weights in weights_of(hierarchy):
        yield weights.alone(hierarchy)
        for part in _WORTHS:
            yield weights.combined(hierarchy, worth_of(first, part))


def worth_of(one: Timed, part: float = 1.0) -> float:
    """pJ that a cycle is worth where both matter alike, times `part`."""
    return part * (one.energy + one.mac_pj) / one.cycles


def repriced(
    choice: Choice, priced: Hierarchy, hierarchy: Hierarchy
) -> tuple[BufferMemory, ...]:
    """Memories at the prices of one hierarchy, at those of another with its levels."""
    names = [level.name for level in hierarchy.levels]
    found = []
    for one in choice:
        name = level_of(one, priced)
        pj = hierarchy.price(names.index(name), one.tensor)
        found.append(replace(one, pj=pj, level=name))
    return tuple(found)
