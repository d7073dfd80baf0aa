"""Nests for several cores, searched for anew for each number and split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_search import neighbours, optimize_for_cores
from memplan.blocking.design.parallel import (
    SHARED,
    best_cores_energy,
    cores_energy,
)
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.errors import UsageError
from tests.blocking.nest_strategies import nests
from tests.strategies import examples

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


def test_a_poor_nest_is_left_behind() -> None:
    layer = Layer("larger", 12, 8, 16, 24, 3, 3)
    poor = parse_nest("K24 C16 X12 Y8 Fw3 Fh3", layer, {"C": 8, "K": 4})
    (found,) = optimize_for_cores(poor, [(4, "xy")], options=ENOUGH)
    own, given_ = found.energy, found.one_nest
    assert own.total - own.main < 0.7 * (given_.total - given_.main)
    assert str(found.nest) != str(poor)


def test_a_nest_of_many_buffers_has_them_all() -> None:
    """Also the outermost, which shields main memory from those inside."""
    layer = Layer("deep", 64, 64, 4, 256, 3, 3)
    loops = "Fw3 Fh3 X2 K2 Y2 K4 X4 K8 Y4 K16 X8 K32 Y8 K64 X64 Y64 K256 C4"
    nest = parse_nest(loops, layer)
    assert len(count(nest)[Tensor.INPUT].choices) > 6
    found = best_cores_energy(nest, 1, "xy")
    memories = best_memories(count(nest), Codesign())
    assert found.total == pytest.approx(Codesign().evaluate(nest, memories), rel=1e-9)


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
