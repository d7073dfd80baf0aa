"""What no nest takes less than on several cores.

Of each tensor only the last memory is spread, and which one that is depends on the
nest: prices by size alone would have every memory be the last. So all nests are parted
by the sizes of their last memories. In a part where the last memory of a tensor has
from `low` to `high` bytes,

- a memory of fewer than `low` bytes is not the last and costs what it does by itself,
  or, if that is less, what one of `low` bytes costs as the last: prices must not fall;
- one of `low` bytes or more costs at least what it would as the last;
- there is none of more than `high` bytes, nor where there is no last one at all;
- all memories together have the bytes of the last ones at least, so the wires are as
  long as these say.

The optimum at these prices is a bound for the part, and the least of all parts' is one
for all nests. The part whose bound is the least is divided, as long as there is time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_prices import from_size, spread
from memplan.blocking.design.parallel import SHARED
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.search.exact import problem_of
from memplan.native import _nest

# Bytes at which nests are parted, one after the other: at first into eight.
_AT = tuple(1 << each for each in (16, 12, 9, 11, 14, 10, 19, 13, 15, 17, 21, 6))
_SHARE = 9  # of the time, for one part at most


@dataclass(frozen=True)
class Part:
    """Nests whose last memories have from `low` to `high` bytes, by tensor; 0: from
    none on; no high: however large."""

    low: Mapping[Tensor, int]
    high: Mapping[Tensor, int | None]

    def divided(self) -> list[Part]:
        """Two that are it together, by the tensor whose last memory may be smallest;
        none where nothing is left to divide."""
        for at in _AT:
            for tensor in sorted(self.low, key=lambda each: self.low[each]):
                high = self.high[tensor]
                if self.low[tensor] < at and (high is None or at < high):
                    return [
                        replace(self, low={**self.low, tensor: at}),
                        replace(self, high={**self.high, tensor: at}),
                    ]
        return []


EVERY = Part(dict.fromkeys(Tensor, 0), dict.fromkeys(Tensor))


class CoresBound:
    """The bound of a layer's nests on so many cores, for one split and datapath.

    one: a nest of the layer on the datapath. threads: of a part's optimum.
    """

    def __init__(
        self, one: Nest, cores: int, split: str, machine: Codesign, threads: int
    ) -> None:
        self._one, self._cores, self._split = one, cores, split
        self._machine, self._threads = machine, threads
        self._traffic = machine.traffic(one)

    def pj(self, best: float, seconds: float) -> float:
        """pJ that no nest takes less than, or `best` if that is less; within about so
        many seconds, a third of them for one part at most.

        Raises KeyboardInterrupt after Ctrl-C.
        """
        begin = time.monotonic()
        if self._cores == 1:
            return min(self.of(EVERY, best, seconds), best)
        # Where there is little time, all nests together are what is worth it.
        least = self.of(EVERY, best, seconds / 3)
        first = [EVERY]
        for _ in Tensor:
            first = [each for part in first for each in part.divided()]
        parts = [(least, number, part, False) for number, part in enumerate(first)]
        count = len(parts)
        while parts[0][0] < best:
            left = seconds - (time.monotonic() - begin)
            low, number, part, bounded = parts[0]
            if left <= 0:
                break
            if not bounded:
                found = self.of(part, best, min(left, seconds / _SHARE))
                heapq.heapreplace(parts, (max(found, low), number, part, True))
                continue
            divided = part.divided()
            if not divided:
                break
            heapq.heappop(parts)
            for each in divided:
                count += 1
                heapq.heappush(parts, (low, count, each, False))
        return min(parts[0][0], best)

    def of(self, part: Part, best: float, seconds: float) -> float:
        """pJ that no nest of a part takes less than; the compulsory accesses to main
        memory at least."""
        layer, handed = self._one.layer, self.handed(part)
        found = _nest.optimum(
            problem_of(layer, self._one.unroll, self.priced(part), shared=False),
            whole=True,
            incumbent=max(best - handed, 0.0) / layer.G,
            seconds=seconds,
            threads=self._threads,
        )
        if found.interrupted:
            raise KeyboardInterrupt
        return max(found.lower_bound * layer.G, self._compulsory()) + handed

    def priced(self, part: Part) -> Codesign:
        """Prices of the part, at most what its nests pay."""
        own = self._machine.curves
        if self._cores == 1:
            return self._machine
        shared = own[SHARED[self._split]]
        wires = shared.on_chip(sum(part.low.values()))
        last = spread(own, self._cores, self._split, wires)
        curves = {}
        for tensor, curve in own.items():
            priced = from_size(curve, last[tensor], part.low[tensor])
            high = part.high[tensor]
            largest = priced.dram_above
            if high is not None:
                largest = min(largest, high)
            curves[tensor] = replace(priced, dram_above=largest)
        return replace(self._machine, curves=curves)

    def _compulsory(self) -> float:
        return sum(
            own.compulsory_words * self._machine.main_pj(tensor)
            for tensor, own in self._traffic.items()
        )

    def handed(self, part: Part) -> float:
        """pJ of handing the outputs to all cores, at least."""
        if self._split != "k" or self._cores == 1:
            return 0.0
        curve = self._machine.curves[Tensor.OUTPUT]
        words = self._traffic[Tensor.OUTPUT].compulsory_words
        return words * curve.on_chip(sum(part.low.values()))
