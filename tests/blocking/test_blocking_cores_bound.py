"""What no nest takes less than on several cores, against all nests counted."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping

import pytest

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_search import CoresBound, last_prices
from memplan.blocking.design.parallel import SHARED, best_cores_energy, check_split
from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import Traffic
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.search.exact import nest_from, numbered, problem_of
from memplan.errors import UsageError
from memplan.native import _nest
from tests.blocking.test_blocking_exact import _random_curve
from tests.blocking.test_blocking_whole import all_nests, tiny

Last = Mapping[Tensor, Curve]


def machine_of(rng: random.Random) -> Codesign:
    dram = rng.choice((5.0, 320.0))
    curves = {tensor: _random_curve(rng, dram) for tensor in Tensor}
    budget = rng.choice((None, None, 8, 60, 150))
    return Codesign(curves, budget, rng.random() < 0.5)


def plain(layer: Layer, unroll: Mapping[str, int]) -> Nest:
    loops = [(dim, layer.size(dim)) for dim in DIMS]
    base = {dim: min(unroll.get(dim, 1), layer.size(dim)) for dim in DIMS}
    return nest_of(layer, [(d, n) for d, n in loops if n > base[d]], unroll)


def fits(nest: Nest, cores: int, split: str) -> bool:
    try:
        check_split(nest, cores, split)
    except UsageError:
        return False
    return True


def least_of(nest: Nest, machine: Codesign, last: Last) -> float:
    """The least over all choices of buffers, each written out, of which the last of
    each tensor has its own price."""
    own = [
        list(choices(traffic, machine, last))
        for traffic in machine.traffic(nest).values()
    ]
    budget = math.inf if machine.budget is None else machine.budget
    return min(
        sum(pj for pj, _ in chosen)
        for chosen in itertools.product(*own)
        if sum(nbytes for _, nbytes in chosen) <= budget
    )


def choices(own: Traffic, machine: Codesign, last: Last) -> list[tuple[float, int]]:
    """pJ and bytes of every choice of one tensor's buffers."""
    curve, found = machine.curves[own.tensor], []
    buffers = [one for one in own.choices if one.nbytes <= curve.dram_above]
    for taken in itertools.product((False, True), repeat=len(buffers)):
        kept = [one for one, is_in in zip(buffers, taken, strict=True) if is_in]
        total, words = 0.0, own.demand_words
        for one in kept:
            priced = last.get(own.tensor, curve) if one is kept[-1] else curve
            fills = one.outward_words * machine.count_fills
            total += (words + fills) * priced.on_chip(one.nbytes)
            words = one.outward_words
        total += words * machine.main_pj(own.tensor)
        found.append((total, sum(one.nbytes for one in kept)))
    return found


@pytest.mark.soak
def test_the_kernels_give_last_memories_their_own_price() -> None:
    reached = 0
    for seed in range(12):
        rng = random.Random(seed)
        layer, unroll = tiny(rng)
        machine = machine_of(rng)
        cores, split = rng.choice((2, 3, 8)), rng.choice(("k", "xy"))
        last = last_prices(machine, cores, split, rng.choice((0.0, 0.3, 2.0)))
        nests = [nest_of(layer, loops, unroll) for loops in all_nests(layer, unroll)]
        least = min(least_of(nest, machine, last) for nest in nests)
        where = f"seed {seed}: {layer}, {unroll}, {machine}"
        problem = problem_of(layer, unroll, machine, last=last)
        relaxed = _nest.optimum(problem, True, math.inf, 20.0, 1)
        assert relaxed.proved, where
        assert relaxed.lower_bound * layer.G <= least * (1 + 1e-9), where
        if not any(layer.size(dim) % n for dim, n in unroll.items()):
            divided = _nest.optimum(problem, False, math.inf, 20.0, 1)
            assert divided.energy * layer.G >= least * (1 - 1e-9), where
        start = plain(layer, unroll)
        loops, *_ = _nest.improved(problem, [numbered(start)], 0.0, 2, 20.0, 1)
        found = least_of(nest_from(loops, layer, unroll), machine, last)
        assert found >= least * (1 - 1e-9), where
        reached += found <= least * (1 + 1e-9)
    assert reached == 12


def test_no_nest_is_below_the_bound() -> None:
    gaps = []
    for seed in range(12):
        rng = random.Random(seed)
        layer, unroll = tiny(rng)
        machine = machine_of(rng)
        start = plain(layer, unroll)
        ways = [
            way for way in itertools.product((2, 3, 4, 5), SHARED) if fits(start, *way)
        ]
        if not ways:
            continue
        cores, split = rng.choice(ways)
        given = best_cores_energy(start, cores, split, machine)
        bound = CoresBound(start, (cores, split), machine, 1)
        found = bound.least(given.total, given.sram_bytes, 0.5, 600.0)
        counted = (nest_of(layer, loops, unroll) for loops in all_nests(layer, unroll))
        least = min(
            best_cores_energy(nest, cores, split, machine).total for nest in counted
        )
        assert found <= least * (1 + 1e-9), f"seed {seed}: {layer}, {unroll}, {machine}"
        gaps.append(least / found - 1)
    assert len(gaps) > 2
    assert sorted(gaps)[len(gaps) // 2] < 0.05


def test_more_time_raises_the_bound() -> None:
    layer = Layer("small", 7, 7, 8, 12, 3, 3)
    one = parse_nest("X7 Fw3 Fh3 K12 Y7", layer, {"C": 8, "K": 4})
    given = best_cores_energy(one, 3, "k")
    bound = CoresBound(one, (3, "k"), Codesign(), 1)
    first = bound.least(given.total, given.sram_bytes, 0.0, 600.0)
    later = bound.least(given.total, given.sram_bytes, 1.0, 600.0)
    assert 0 < first <= later <= given.total
    assert bound.nests
    assert all(nest.layer == layer for nest in bound.nests)
