"""The search over the whole space: against all nests, its bound, and bad luck."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import strategies as st
from nest_choices import least_energy
from nest_strategies import nests

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, parse_layer
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result, SearchProgress, Space
from memplan.errors import UsageError
from tests.blocking.test_blocking_exact import _random_objective
from tests.strategies import examples

CORE = {"C": 16, "K": 16}
DIANNAO = Fixed(load_hierarchy("diannao"))
LAYERS = 24
MOST = 500  # nests of a tiny layer


def all_nests(
    layer: Layer, unroll: Mapping[str, int]
) -> Iterator[list[tuple[str, int]]]:
    """Any extents in any order; two loops of one dimension side by side are one, unless
    a stripe of the input may lie between them."""
    step = dict(zip("XY", layer.stride, strict=True))
    windows = {"X": layer.Fw, "Y": layer.Fh}
    whole = {dim for dim in DIMS if windows.get(dim, 0) <= step.get(dim, 0)}
    base = {dim: min(unroll.get(dim, 1), layer.size(dim)) for dim in DIMS}

    def extended(
        reached: Mapping[str, int], last: str
    ) -> Iterator[list[tuple[str, int]]]:
        open_ = [dim for dim in DIMS if reached[dim] < layer.size(dim)]
        if not open_:
            yield []
        for dim in open_:
            if dim == last and dim in whole:
                continue
            step, size = unroll.get(dim, 1), layer.size(dim)
            extents = {n for n in range(step, size, step) if n > reached[dim]} | {size}
            for extent in sorted(extents):
                for rest in extended({**reached, dim: extent}, dim):
                    yield [(dim, extent), *rest]

    return extended(base, "")


def tiny(rng: random.Random, wide: bool = False) -> tuple[Layer, dict[str, int]]:
    """A layer of few enough nests, mostly of sizes that nothing divides; wide: its
    window is wider than its step."""
    while True:
        sizes = {dim: rng.choice((1, 1, 1, 2, 3, 4)) for dim in DIMS}
        sizes[rng.choice("XYCK")] = rng.choice((3, 5, 5, 7))
        if wide:
            sizes |= {"X": rng.choice((3, 4, 5, 6)), "Fw": rng.choice((2, 3))}
        stride = (rng.choice((1, 1, 2, 3)) if not wide else 1, rng.choice((1, 1, 2)))
        layer = Layer("tiny", **sizes, stride=stride, kernel=rng.random() < 0.85)
        unroll = {dim: rng.choice((2, 3, 4)) for dim in "XCK" if rng.random() < 0.25}
        number = len(list(itertools.islice(all_nests(layer, unroll), MOST + 1)))
        if 20 < number <= MOST:
            return layer, unroll


def test_optima_of_all_nests() -> None:
    check_optima(range(LAYERS))


@pytest.mark.soak
def test_optima_of_all_nests_of_many_layers() -> None:
    check_optima(range(LAYERS, 300))


def check_optima(seeds: range) -> None:
    """Over all extents and orders: the search finds the least, and bounds it."""
    proved = slid = 0
    for seed in seeds:
        rng = random.Random(seed)
        wide = seed % 2 == 1
        layer, unroll = tiny(rng, wide)
        objective = _random_objective(rng, wide)
        found = optimize(layer, unroll, objective, Options(threads=1))
        least = min(
            least_energy(objective.traffic(nest_of(layer, loops, unroll)), objective)
            for loops in all_nests(layer, unroll)
        )
        where = f"seed {seed}: {layer}, {unroll}, {objective}"
        assert found.energy == pytest.approx(least, rel=1e-9), where
        assert found.lower_bound is not None
        assert found.lower_bound <= least * (1 + 1e-9), where
        assert found.space is Space.WHOLE
        counted = objective.evaluate(found.nest, found.memories)
        assert counted == pytest.approx(found.energy, rel=1e-9), where
        proved += found.proved
        slid += any(one.slides for one in found.memories or ())
    assert proved > len(seeds) / 4
    assert slid > len(seeds) / 8


# What a hill climb over such nests had found, in pJ per multiplication.
@pytest.mark.parametrize(
    ("text", "better"),
    [
        pytest.param("conv3", 6.70, marks=pytest.mark.soak),
        pytest.param("conv1", 10.31, marks=pytest.mark.soak),
        pytest.param("conv2", 5.95, marks=pytest.mark.soak),
        pytest.param("conv4", 6.38501, marks=pytest.mark.soak),
        pytest.param("conv5", 6.8951, marks=pytest.mark.soak),
        pytest.param("64,192,71,71,3,3", 8.00, marks=pytest.mark.soak),
        pytest.param("512,512,7,7,3,3", 13.32, marks=pytest.mark.soak),
    ],
)
def test_nests_that_do_not_divide(text: str, better: float) -> None:
    layer = parse_layer(text)
    found = optimize(layer, CORE, DIANNAO)
    assert found.energy / layer.macs <= better
    assert found.lower_bound is not None
    assert found.lower_bound >= 0.98 * found.energy
    given_nest = parse_nest(str(found.nest), layer, CORE)
    assert DIANNAO.evaluate(
        given_nest, best_memories(count(given_nest), DIANNAO)
    ) == pytest.approx(found.energy, rel=1e-12)


@examples(
    10,
    nests(window_innermost=False, divisors=False, macs=3000)
    | nests(window_innermost=False, divisors=False, sliding=True),
    st.sampled_from(
        [
            Codesign(),
            Codesign(budget=300),
            Codesign(budget=300, sliding=True),
            DIANNAO,
            Fixed(load_hierarchy("zen4").slid()),
        ]
    ),
    soak=25,
)
def test_no_nest_takes_less_than_the_bound(nest: Nest, objective: Objective) -> None:
    found = optimize(
        nest.layer, nest.unroll, objective, Options(threads=1, time_limit=0.3)
    )
    memories = best_memories(objective.traffic(nest), objective)
    energy = objective.evaluate(nest, memories)
    assert found.lower_bound is not None
    assert found.lower_bound <= energy * (1 + 1e-9)
    # A search that its limit ended may have missed the drawn nest.
    assert found.energy <= energy * (1 + 1e-9) or not found.complete


def test_the_best_memories_are_those_of_all_choices() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        layer, unroll = tiny(rng)
        objective = _random_objective(rng)
        loops = rng.choice(list(itertools.islice(all_nests(layer, unroll), MOST)))
        nest = nest_of(layer, loops, unroll)
        traffic = objective.traffic(nest)
        energy = objective.evaluate(nest, best_memories(traffic, objective))
        assert energy == pytest.approx(least_energy(traffic, objective), rel=1e-9)


def test_no_time_leaves_a_nest_and_a_bound() -> None:
    layer = PAPER_LAYERS["conv1"]
    found = optimize(layer, CORE, DIANNAO, Options(time_limit=0))
    assert found.lower_bound is not None
    assert 0 < found.lower_bound <= found.energy
    assert not found.proved
    assert found.gap == found.energy / found.lower_bound - 1


def test_the_same_nest_on_any_number_of_threads() -> None:
    results: list[Result] = [
        optimize(Layer("some", 13, 11, 24, 40, 3, 3), {}, DIANNAO, Options(threads=n))
        for n in (1, 3)
    ]
    assert str(results[0].nest) == str(results[1].nest)


def test_ctrl_c_keeps_the_best_so_far_and_its_bound() -> None:
    seen: list[SearchProgress] = []

    def press(progress: SearchProgress) -> None:
        seen.append(progress)
        if len(seen) == presses:
            raise KeyboardInterrupt

    energies = []
    for presses in (1, 15):
        seen.clear()
        found = optimize(PAPER_LAYERS["conv1"], CORE, Codesign(), progress=press)
        assert len(seen) == presses
        assert (found.interrupted, found.complete) == (True, False)
        memories = best_memories(count(found.nest), Codesign())
        counted = Codesign().evaluate(found.nest, memories)
        assert found.energy == pytest.approx(counted, rel=1e-12)
        assert found.lower_bound is not None
        assert 0 < found.lower_bound <= found.energy <= seen[-1].energy
        energies.append(found.energy)
    assert energies[1] <= energies[0]


@pytest.mark.parametrize("unroll", [{"Z": 2}, {"X": 0}])
def test_unrolling_that_makes_no_sense(unroll: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"unrolling '[XZ]' by"):
        optimize(parse_layer("4,4,3,3"), unroll, Codesign())
