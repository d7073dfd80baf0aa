"""A layer on several cores: energies, nests searched for anew, and their bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import strategies as st

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_search import (
    CoresBound,
    neighbours,
    optimize_for_cores,
)
from memplan.blocking.design.parallel import (
    SHARED,
    best_cores_energy,
    check_split,
    cores_energy,
)
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.errors import UsageError
from tests.blocking.nest_strategies import nests
from tests.blocking.test_blocking_exact import _random_curve
from tests.blocking.test_blocking_whole import all_nests, tiny
from tests.strategies import examples

CONV1 = PAPER_LAYERS["conv1"]
# The best of two extents a dimension, as the reference has it; its last kernel memory
# is the largest of all, like those of the paper's four schedules.
NEST = parse_nest(
    "X4 Y16 Fw11 Fh11 X256 K192 C256 Y256 K384", CONV1, {"C": 16, "K": 16}
)


@pytest.mark.parametrize(
    ("split", "expected"),
    [("xy", [0.867, 0.834, 0.813, 0.800]), ("k", [0.867, 0.972, 0.883, 0.837])],
)
def test_conv1_as_the_research_has_it(split: str, expected: list[float]) -> None:
    """pJ a multiplication: sharing the larger memory, of kernels, always helps."""
    found = [cores_energy(NEST, cores, split) for cores in (1, 2, 4, 8)]
    assert [round(bar.total / CONV1.macs, 3) for bar in found] == expected


def test_what_is_shared_is_sent_to_all_cores_at_once() -> None:
    bars = {
        (way, n): cores_energy(NEST, n, way) for way in SHARED for n in (1, 2, 4, 8)
    }
    for tensor, split in ((Tensor.KERNEL, "xy"), (Tensor.INPUT, "k")):
        two, eight = bars[split, 2].last[tensor], bars[split, 8].last[tensor]
        assert eight == pytest.approx(two / 4, rel=1e-12)
    # What is split gets cheaper with its memory, but never as fast.
    two, eight = (bars["xy", n].last[Tensor.INPUT] for n in (2, 8))
    assert two / 4 < eight < two
    alpha = CONV1.X * CONV1.Y * CONV1.K
    assert bars["k", 2].shuffle == bars["k", 8].shuffle > alpha
    assert bars["xy", 8].shuffle == 0
    assert len({bar.private for bar in bars.values()}) == 1


@pytest.mark.parametrize(
    ("cores", "split", "message"),
    [
        (0, "k", "0 cores"),
        (2, "c", "not 'c'"),
        (7, "k", "7 cores cannot share 24 tiles of K evenly"),
        (3, "xy", "3 cores cannot share 65536 tiles of XY evenly"),
    ],
)
def test_splits_that_cannot_be(cores: int, split: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cores_energy(NEST, cores, split)


LAYER = Layer("small", 6, 4, 8, 24, 3, 3)
WAYS = [(1, "xy"), (2, "xy"), (3, "k")]
SHORT = Options(threads=1, time_limit=0.05)
# A hundred times of what the two searches take that have to find something.
ENOUGH = Options(threads=1, time_limit=0.5)


def counted(nest: Nest, cores: int, split: str, machine: Codesign) -> float:
    """The least over all choices of buffers, each written out."""
    traffic = machine.traffic(nest)
    kept = [
        (tensor, one)
        for tensor, own in traffic.items()
        for one in own.choices
        if one.reuses and one.nbytes <= machine.curves[tensor].dram_above
    ]
    least = float("inf")
    for taken in itertools.product((False, True), repeat=len(kept)):
        chosen = [pair for pair, is_in in zip(kept, taken, strict=True) if is_in]
        nbytes = sum(one.nbytes for _, one in chosen)
        if machine.budget is not None and nbytes > machine.budget:
            continue
        total = 0.0
        for tensor, own in traffic.items():
            curve, words = machine.curves[tensor], own.demand_words
            mine = [one for t, one in chosen if t is tensor]
            for place, one in enumerate(mine):
                price = curve(one.nbytes)
                if cores > 1 and place == len(mine) - 1:
                    price = curve(one.nbytes / cores)
                    if SHARED[split] is tensor:
                        wires = curve.on_chip(nbytes)
                        price = max(wires, curve(one.nbytes)) / cores
                paid = words + one.outward_words * machine.count_fills
                total, words = total + paid * price, one.outward_words
            total += words * machine.main_pj(tensor)
        if split == "k" and cores > 1:
            outputs = traffic[Tensor.OUTPUT].compulsory_words
            total += outputs * machine.curves[Tensor.OUTPUT].on_chip(nbytes)
        least = min(least, total)
    return least


@examples(
    25,
    nests(window_innermost=False, divisors=False)
    | nests(window_innermost=False, divisors=False, sliding=True),
    st.sampled_from(["k", "xy"]),
    st.sampled_from([Codesign(), Codesign(budget=60), Codesign(count_fills=True)]),
    st.data(),
    soak=60,
)
def test_of_the_buffers_those_that_take_the_least(
    nest: Nest, split: str, machine: Codesign, data: st.DataObject
) -> None:
    tiles = 1
    for dim in split.upper():
        tiles *= -(-nest.layer.size(dim) // nest.base(dim))
    cores = data.draw(
        st.sampled_from([n for n in range(1, tiles + 1) if not tiles % n])
    )
    found = best_cores_energy(nest, cores, split, machine)
    assert found.total == pytest.approx(counted(nest, cores, split, machine), rel=1e-9)
    given_ = cores_energy(nest, cores, split, machine)
    assert found.total <= given_.total * (1 + 1e-9)


@pytest.fixture(scope="module")
def one() -> Nest:
    options = Options("divisors", threads=1)
    return optimize(LAYER, {"C": 8, "K": 4}, Codesign(), options).nest


def test_never_worse_than_one_nest_and_never_below_the_bound(one: Nest) -> None:
    found = optimize_for_cores(one, WAYS, options=SHORT)
    assert [(f.energy.cores, f.energy.split) for f in found] == WAYS
    for (cores, split), own in zip(WAYS, found, strict=True):
        assert own.energy.total <= own.one_nest.total * (1 + 1e-9)
        assert own.one_nest == best_cores_energy(one, cores, split)
        again = best_cores_energy(own.nest, cores, split)
        assert own.energy == again
        assert own.nest.unroll == one.unroll
        assert 0 < own.lower_bound <= own.energy.total
        assert own.gap >= 0
        assert own.energy.sram_bytes > 0


def test_within_a_budget(one: Nest) -> None:
    machine = Codesign(budget=1500)
    (found,) = optimize_for_cores(one, [(2, "k")], machine, SHORT)
    assert found.energy.sram_bytes <= 1500
    assert found.energy.total <= cores_energy(one, 2, "k", machine).total


def test_ctrl_c_ends_all(one: Nest) -> None:
    def press(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimize_for_cores(one, [(2, "xy")], progress=press)


def test_what_cannot_be(one: Nest) -> None:
    with pytest.raises(UsageError, match="5 cores cannot share"):
        optimize_for_cores(one, [(2, "k"), (5, "k")])
    with pytest.raises(UsageError, match="least energy"):
        optimize_for_cores(one, [(2, "k")], options=Options(minimize="cycles"))


def test_no_change_of_a_nest_makes_it_better() -> None:
    """What is found does not depend on the clock alone."""
    layer, way = Layer("little", 6, 2, 4, 6, 3, 1), (3, "k")
    poor = parse_nest("Fw3 X6 Y2 K6 C4", layer, {})
    (found,) = optimize_for_cores(poor, [way], options=ENOUGH)
    changed = list(neighbours(found.nest))
    assert len(changed) > 30
    for nest in changed:
        energy = best_cores_energy(nest, *way)
        assert energy.total >= found.energy.total * (1 - 1e-8)


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
