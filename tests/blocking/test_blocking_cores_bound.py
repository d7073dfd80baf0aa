"""What no nest takes less than on several cores, against nests counted one by one."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_bound import EVERY, CoresBound, Part
from memplan.blocking.design.cores_prices import from_size, spread
from memplan.blocking.design.parallel import best_cores_energy
from memplan.blocking.machine.energy import paper_curves
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.errors import UsageError
from tests.blocking.nest_strategies import nests

LAYER = Layer("small", 6, 4, 8, 8, 3, 3)
SIZES = [1, 3, 16, 100, 1 << 10, 5000, 1 << 14, 1 << 18, 1 << 22, 1 << 26]


def parts_of(part: Part, depth: int, chance: random.Random) -> list[Part]:
    """Parts that are `part` together."""
    divided = part.divided() if depth and chance.random() < 0.8 else []
    if not divided:
        return [part]
    return [one for each in divided for one in parts_of(each, depth - 1, chance)]


def replaced(part: Part, tensor: Tensor, at: int) -> list[Part]:
    """A part divided at so many bytes of a tensor's last memory."""
    high = part.high[tensor]
    if part.low[tensor] >= at or (high is not None and high <= at):
        return [part]
    return [
        replace(part, low={**part.low, tensor: at}),
        replace(part, high={**part.high, tensor: at}),
    ]


@given(
    nest=nests(window_innermost=False, divisors=False),
    cores=st.integers(2, 8),
    split=st.sampled_from(["k", "xy"]),
)
@settings(max_examples=60)
def test_no_nest_is_below_the_prices_of_its_part(
    nest: Nest, cores: int, split: str
) -> None:
    machine = Codesign()
    try:
        real = best_cores_energy(nest, cores, split, machine).total
    except UsageError:  # it cannot be split so
        return
    bound = CoresBound(nest, cores, split, machine, 1)
    least = float("inf")
    for part in parts_of(EVERY, 5, random.Random(cores)):
        priced = bound.priced(part)
        memories = best_memories(priced.traffic(nest), priced)
        energy = priced.evaluate(nest, memories)
        least = min(least, energy + bound.handed(part))
    assert least <= real * (1 + 1e-9)


@pytest.mark.parametrize("split", ["k", "xy"])
@pytest.mark.parametrize("wires", [0.1, 3.0, 40.0])
def test_prices_never_fall_and_are_never_too_high(split: str, wires: float) -> None:
    own = paper_curves()
    last = spread(own, 4, split, wires)
    for tensor, curve in own.items():
        for nbytes in (0, 100, 5000, 1 << 16, 1 << 21):
            priced = from_size(curve, last[tensor], nbytes)
            pj = [priced.on_chip(size) for size in SIZES]
            assert pj == sorted(pj)
            for size, price in zip(SIZES, pj, strict=True):
                assert price <= curve.on_chip(size) * (1 + 1e-9)
                if size >= max(nbytes, 1):
                    assert price == pytest.approx(last[tensor].on_chip(size))
                else:
                    least = last[tensor].on_chip(nbytes)
                    assert price == pytest.approx(min(curve.on_chip(size), least))


@pytest.mark.parametrize("way", [(4, "xy"), (8, "k")])
def test_no_nest_is_below_the_bound(way: tuple[int, str]) -> None:
    machine, chance = Codesign(), random.Random(1)
    one = parse_nest("Fw3 Fh3 X6 Y4 K8 C8", LAYER, {})
    best = best_cores_energy(one, *way, machine).total
    of = CoresBound(one, *way, machine, 1)
    assert 0 < of.pj(best, 0.5) <= best
    plain = of.of(EVERY, best, 60.0)
    parts = [EVERY]
    for tensor, at in itertools.product(Tensor, (64,)):
        divided = [replaced(part, tensor, at) for part in parts]
        parts = [each for both in divided for each in both]
    bound = min(of.of(part, best, 60.0) for part in parts)
    assert plain < bound <= best * (1 + 1e-9)
    for _ in range(300):
        loops = [("Fw", 3), ("Fh", 3)]
        for dim in "XYCK":
            size = LAYER.size(dim)
            loops += [(dim, chance.randint(1, size)) for _ in range(2)]
        chance.shuffle(loops)
        loops += [(dim, LAYER.size(dim)) for dim in chance.sample("XYCK", 4)]
        reached: dict[str, int] = {}
        kept = []
        for dim, extent in loops:
            if extent >= reached.get(dim, 1):
                reached[dim] = extent
                kept.append((dim, extent))
        nest = nest_of(LAYER, kept, {})
        assert best_cores_energy(nest, *way, machine).total >= bound * (1 - 1e-9)


def test_parts_are_all_together() -> None:
    parts = parts_of(EVERY, 6, random.Random(3))
    assert len(parts) > 8
    for nbytes in SIZES:
        where = [
            part
            for part in parts
            if all(
                part.low[t] <= nbytes and (part.high[t] or nbytes) >= nbytes
                for t in Tensor
            )
        ]
        assert where
