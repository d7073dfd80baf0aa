"""What no nest takes less than on several cores (paper, section 3.3).

What is shared is sent over wires as long as all memories together are wide, so an
access to it has no price before all sizes are known. Nests whose memories take from so
many bytes to so many have one at least; and the last memory of every tensor has its own
price beside those inside it. With these the kernel's relaxation bounds such nests from
below. The bound of all nests is the least over bands of bytes, of which the lowest is
halved again and again.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.parallel import SHARED
from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.search.exact import problem_of
from memplan.blocking.search.kernel_loops import nest_from, relaxed_loops
from memplan.native import _nest

_PARTS = (1, 8, 64)  # of the best nest's bytes, where the first bands end
_STEP = 8.0  # of a band without an end, or that begins at nothing
_NARROW = 1.1  # a band whose ends are so near is worth no more time
_NEAR = 1e-3  # relative; likewise a bound so near to the best


@dataclass(frozen=True, order=True)
class _Band:
    """Nests whose memories take [low, high) bytes in all, and pJ that none of them
    takes less than; high: None without an end."""

    least: float
    low: int
    high: int | None = field(compare=False)

    def halves(self) -> tuple[tuple[int, int], tuple[int, int | None]] | None:
        """Its two parts by bytes, unless it is narrow."""
        if self.high is None:
            middle = math.ceil(self.low * _STEP)
        elif self.low == 0:
            middle = int(self.high / _STEP)
        else:
            middle = int(math.sqrt(self.low * self.high))
            if self.high < self.low * _NARROW:
                return None
        if not self.low < middle:
            return None
        return (self.low, middle), (middle, self.high)


def last_prices(
    machine: Codesign, cores: int, split: str, wires: float
) -> dict[Tensor, Curve]:
    """Prices of each tensor's last memory by the bytes of all its parts together, a
    core's share of an access to what is sent to all; none for one core.

    wires: pJ of an access over these.
    """
    if cores == 1:
        return {}
    found = {}
    for tensor, curve in machine.curves.items():
        if tensor is SHARED[split]:
            sizes = sorted({*curve.nbytes, *_crossing(curve, wires)})
            pj = tuple(max(curve.on_chip(size), wires) / cores for size in sizes)
            found[tensor] = replace(curve, nbytes=tuple(sizes), pj=pj)
        else:
            sizes = [size * cores for size in curve.nbytes]
            found[tensor] = replace(curve, nbytes=tuple(sizes))
    return found


class CoresBound:
    """Of all nests over the layer and on the datapath of `one`, on so many cores that
    split "k" or "xy"."""

    def __init__(
        self,
        one: Nest,
        way: tuple[int, str],
        machine: Codesign,
        threads: int,
        report: Callable[[], None] | None = None,
    ) -> None:
        """report: called now and then."""
        self._one, self._machine, self._threads = one, machine, threads
        self._cores, self._split = way
        self._report = report
        self._traffic = machine.traffic(one)
        self._best = math.inf
        self.nests: list[Nest] = []  # of the relaxation's optima

    def least(self, best: float, nbytes: int, seconds: float, each: float) -> float:
        """pJ that no nest takes less than.

        best: of a nest that is known, whose memories take `nbytes`; seconds: for all
        bands together, about; each: for one of them, at the most. Raises
        KeyboardInterrupt after Ctrl-C.
        """
        begin, self._best = time.perf_counter(), best
        if self._cores == 1:
            return self._band(0, None, seconds).least
        ends = [0, *sorted({nbytes // part for part in _PARTS} - {0})]
        bands = [
            self._band(low, high, each)
            for low, high in zip(ends, [*ends[1:], None], strict=True)
        ]
        heapq.heapify(bands)
        while time.perf_counter() - begin < seconds:
            lowest = bands[0]
            halves = lowest.halves()
            if lowest.least >= best * (1 - _NEAR) or halves is None:
                break
            heapq.heappop(bands)
            for low, high in halves:
                half = self._band(low, high, each)
                # What holds of the whole holds of either half.
                least = max(half.least, lowest.least)
                heapq.heappush(bands, replace(half, least=least))
        return bands[0].least

    def prices(self, nbytes: float) -> Mapping[Tensor, Curve]:
        """Of last memories, where all take so many bytes."""
        wires = self._machine.curves[SHARED[self._split]].on_chip(max(nbytes, 1.0))
        return last_prices(self._machine, self._cores, self._split, wires)

    def _band(self, low: int, high: int | None, seconds: float) -> _Band:
        budget = self._machine.budget
        most = min((n for n in (budget, high) if n is not None), default=None)
        if budget is not None and low > budget:
            return _Band(math.inf, low, high)
        shuffle = self._shuffle(low)
        found = _nest.optimum(
            problem_of(
                self._one.layer,
                self._one.unroll,
                replace(self._machine, budget=most),
                shared=False,
                last=self.prices(low),
            ),
            whole=True,
            incumbent=(self._best - shuffle) / self._one.layer.G,
            seconds=seconds,
            threads=self._threads,
            report=self._report,
        )
        if found.interrupted:
            raise KeyboardInterrupt
        if loops := relaxed_loops(found):
            layer, unroll = self._one.layer, self._one.unroll
            self.nests.append(nest_from(loops, layer, unroll))
        compulsory = self._machine.compulsory_pj(self._traffic)
        least = max(found.lower_bound * self._one.layer.G, compulsory)
        return _Band(least + shuffle, low, high)

    def _shuffle(self, nbytes: int) -> float:
        """pJ of handing the outputs to all, if memories have at least so many bytes."""
        if self._split != "k" or self._cores == 1:
            return 0.0
        curve = self._machine.curves[Tensor.OUTPUT]
        outputs = self._traffic[Tensor.OUTPUT]
        return outputs.compulsory_words * curve.on_chip(max(nbytes, 1))


def _crossing(curve: Curve, pj: float) -> Iterator[float]:
    """The size at which an access costs so much, if it is one between two knots."""
    if curve.pj[0] < pj < curve.pj[-1]:
        at = np.interp(math.log(pj), np.log(curve.pj), np.log(curve.nbytes))
        yield math.exp(float(at))
