"""The exact optimum: against enumeration, known optima, limits and wrong arguments."""

from __future__ import annotations

import itertools
import random
import signal
import types
from dataclasses import replace

import pytest
from nest_choices import all_loops, least_energy, merged

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.energy import Curve, table_3
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import nest_of
from memplan.blocking.nest.precision import Precision
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.result import Options
from memplan.errors import NoPlanError, UsageError

DATAPATH = {"C": 16, "K": 16}
CASES = 16


def test_optima_of_the_enumeration() -> None:
    check_optima(range(CASES))


@pytest.mark.soak
def test_optima_of_many_enumerations() -> None:
    check_optima(range(CASES, 200))


def check_optima(seeds: range) -> None:
    checked = 0
    for seed in seeds:
        rng = random.Random(seed)
        layer, unroll = _random_layer(rng)
        sized = layer.padded(unroll)
        objective = _random_objective(rng)
        nests = [
            nest_of(sized, loops, unroll)
            for split in all_loops(layer, unroll)
            for loops in (merged(split) if objective.sliding else [split])
        ]
        least = min(least_energy(objective.traffic(nest), objective) for nest in nests)
        found = optimum(layer, unroll, objective, Options(threads=1 + seed % 2))
        where = f"seed {seed}: {layer}, {unroll}, {objective}"
        assert found.energy == pytest.approx(least, rel=1e-9), where
        assert found.proved, where
        assert found.lower_bound == found.energy, where
        nest = found.nest
        assert objective.evaluate(nest, found.memories) == pytest.approx(
            found.energy, rel=1e-9
        ), where
        checked += len(nests)
    assert checked > 10 * len(seeds)


def _random_layer(rng: random.Random) -> tuple[Layer, dict[str, int]]:
    """A layer of at most six loops, and of few enough nests."""
    while True:
        sizes = {
            "X": rng.choice((1, 2, 3, 4, 4, 6, 8)),
            "Y": rng.choice((1, 1, 2, 4, 5)),
            "C": rng.choice((1, 2, 3, 4)),
            "K": rng.choice((1, 2, 3, 4)),
            "Fw": rng.choice((1, 1, 2, 3)),
            "Fh": rng.choice((1, 1, 3)),
            "B": rng.choice((1, 1, 2)),
            "G": rng.choice((1, 1, 1, 3)),
        }
        stride = (rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)))
        if rng.random() < 0.3:  # a square one, where columns and rows are alike
            sizes |= {"Y": sizes["X"], "Fh": sizes["Fw"]}
            stride = (stride[0], stride[0])
        unroll = {dim: 2 for dim in "XCKG" if rng.random() < 0.15}
        if rng.random() < 0.1:
            unroll["Fw"] = sizes["Fw"]
        layer = Layer("tiny", **sizes, stride=stride, kernel=rng.random() < 0.8)
        if len(list(itertools.islice(all_loops(layer, unroll), 120))) < 120:
            return layer, unroll


def _random_objective(rng: random.Random, slides: bool = False) -> Objective:
    """Memories of any kind, and elements of any bits; slides: whether all memories can
    have sliding buffers, or by chance one of them."""
    machine, one = _random_memories(rng), rng.random() < 0.4
    bits = Precision()
    if rng.random() < 0.4:
        bits = Precision(*rng.choices((2, 4, 8, 8, 16, 24, 32), k=4))
    if isinstance(machine, Codesign):
        return replace(machine, precision=bits, sliding=slides or one)
    hierarchy = machine.hierarchy.at(bits)
    levels = list(hierarchy.levels)
    if one:
        number = rng.randrange(len(levels))
        levels[number] = replace(levels[number], sliding=True)
    hierarchy = replace(hierarchy, levels=tuple(levels))
    return Fixed(hierarchy.slid() if slides else hierarchy)


def _random_memories(rng: random.Random) -> Objective:
    fills, dram = rng.random() < 0.5, rng.choice((5.0, 320.0))
    if rng.random() < 0.6:
        curves = {tensor: _random_curve(rng, dram) for tensor in Tensor}
        budget = rng.choice((None, None, 0, 8, 24, 60, 150))
        return Codesign(curves, budget, fills)
    sizes = sorted(rng.sample((4, 8, 10, 16, 24, 40, 64, 100), rng.choice((1, 2, 3))))
    levels = []
    for depth, nbytes in enumerate(sizes):
        pj = {tensor: (depth + 1) * rng.uniform(0.5, 1) for tensor in Tensor}
        if rng.random() < 0.5:
            levels.append(Level(f"L{depth}", nbytes, None, pj))
        else:
            private = {t: nbytes * rng.choice((1, 2)) for t in Tensor}
            levels.append(Level(f"L{depth}", None, private, pj))
    curves = {tensor: table_3(256) for tensor in Tensor}
    return Fixed(Hierarchy("tiny", "", "", tuple(levels), curves, dram, 1.0, fills))


def _random_curve(rng: random.Random, dram_pj: float) -> Curve:
    pj = list(itertools.accumulate(rng.uniform(0.01, 1.5) for _ in range(4)))
    return Curve((4, 16, 64, 300), tuple(pj), rng.choice((40, 100, 1000)), dram_pj)


# Energies of memplan's model that are known to be least: section 3.5's layers with
# memories of the buffers' own, under budgets, and in DianNao.
@pytest.mark.parametrize(
    ("name", "budget", "energy"),
    [
        ("conv3", None, 5.041127551e8),  # 5.147242280e8 without stripes
        ("conv4", 1 << 20, 1.170104783e9),
        ("conv5", None, 1.250347646e9),
    ],
)
def test_memories_of_their_own(name: str, budget: int | None, energy: float) -> None:
    layer, machine = PAPER_LAYERS[name], Codesign(budget=budget)
    found = optimum(layer, DATAPATH, machine)
    assert found.proved
    assert found.energy == pytest.approx(energy, rel=1e-8)
    assert budget is None or sum(one.nbytes for one in found.memories or ()) <= budget
    of_nest = machine.evaluate(found.nest, found.memories)
    assert of_nest == pytest.approx(found.energy, rel=1e-9)


def test_time_limit_leaves_a_valid_bound() -> None:
    layer, limit = PAPER_LAYERS["conv2"], 1 / 64
    energy = 1.641214205e10  # what it takes without a datapath
    while True:
        try:
            found = optimum(layer, options=Options(time_limit=limit))
        except NoPlanError:
            limit *= 2
            continue
        assert found.lower_bound <= energy * (1 + 1e-8)
        assert found.energy >= energy * (1 - 1e-8)
        assert found.proved == (found.lower_bound == found.energy)
        break


def test_no_time_at_all() -> None:
    with pytest.raises(NoPlanError, match="too few for a nest of 4,4,3,3"):
        optimum(parse_layer("4,4,3,3"), options=Options(time_limit=0))


def test_interrupt() -> None:
    def interrupt(_: int, __: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            optimum(PAPER_LAYERS["conv1"])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_wrong_arguments() -> None:
    layer = parse_layer("4,4,3,3")
    with pytest.raises(UsageError, match="'Z' by 2"):
        optimum(layer, {"Z": 2})
    with pytest.raises(UsageError, match="'C' by 0"):
        optimum(layer, {"C": 0})
    for limit in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="time limit"):
            optimum(layer, options=Options(time_limit=limit))
    with pytest.raises(UsageError, match="threads is 0"):
        optimum(layer, options=Options(threads=0))


def test_too_many_tiles() -> None:
    with pytest.raises(UsageError, match="many has sizes with too many divisors"):
        optimum(Layer("many", 720720, 720720, 720720, 1))


def test_too_many_shared_levels() -> None:
    curves = {tensor: table_3(256) for tensor in Tensor}
    levels = tuple(Level(f"L{i}", 1024 << i, None, {}) for i in range(5))
    many = Hierarchy("many", "", "", levels, curves, 320.0, 1.0, False)
    with pytest.raises(UsageError, match="many has 5 shared levels"):
        optimum(parse_layer("4,4,3,3"), None, Fixed(many))
