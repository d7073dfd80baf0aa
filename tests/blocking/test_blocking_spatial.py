"""Spatial mappings: which there are, what bounds say of them, and the best of all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from nest_choices import least_energy

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.latency import datapath_steps
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.machine.energy import paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level, load_hierarchy
from memplan.blocking.nest.array import Array, MappingSearch, parse_array
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import DIMS, Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.mappings import bounds_of, mappings_of, usual
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.spatial import better, search_datapath, search_one_of
from memplan.errors import UsageError
from tests.blocking.nest_strategies import layers, nests
from tests.blocking.test_blocking_whole import all_nests
from tests.strategies import examples

DIANNAO = Fixed(load_hierarchy("diannao"))
ONE = Options(threads=1)
ARRAYS = st.sampled_from([Array((2, 2)), Array((4,)), Array((3, 2)), Array((2, 2, 2))])


def small_machine(sizes: Sequence[int], shared: int, *, fills: bool = False) -> Fixed:
    """A memory for each tensor of few bytes, and one that they share."""
    inner = Level("near", None, dict(zip(Tensor, sizes, strict=True)), {}, None)
    inner = replace(inner, pj=dict.fromkeys(Tensor, 1.0))
    outer = Level("far", shared, None, dict.fromkeys(Tensor, 6.0))
    both = (inner, outer)
    return Fixed(Hierarchy("small", "", "", both, paper_curves(), 100.0, 1.0, fills))


def every_unroll(layer: Layer, array: Array) -> Iterator[dict[str, int]]:
    """All that lie on the array, by trying all counts along every side."""
    sizes = [layer.size(dim) for dim in DIMS]
    along = [
        [
            row
            for row in itertools.product(*(range(1, min(n, side) + 1) for n in sizes))
            if math.prod(row) <= side
        ]
        for side in array.sides
    ]
    seen = set()
    for rows in itertools.product(*along):
        counts = tuple(map(math.prod, zip(*rows, strict=True)))
        seen.add(tuple(map(min, counts, sizes)))
    for counts in sorted(seen):
        yield {dim: n for dim, n in zip(DIMS, counts, strict=True) if n > 1}


@examples(20, layers(macs=60), ARRAYS, soak=40)
def test_mappings_are_all_that_differ(layer: Layer, array: Array) -> None:
    found = mappings_of(layer, array)
    assert found.complete
    steps = dict(zip(("Fw", "Fh"), layer.stride, strict=True))

    def alike(unroll: Mapping[str, int]) -> Iterator[int]:
        """What nests around a mapping depend on: trips, but of a window in steps."""
        for dim in DIMS:
            n = min(unroll.get(dim, 1), layer.size(dim))
            yield n if steps.get(dim, 1) > 1 else -(-layer.size(dim) // n)

    trips = [tuple(alike(found.unroll(i))) for i in range(len(found.counts))]
    expected = {tuple(alike(unroll)) for unroll in every_unroll(layer, array)}
    listed = set(trips)
    assert len(listed) == len(trips)
    if (layer.X, layer.Fw, layer.stride[0]) == (layer.Y, layer.Fh, layer.stride[1]):
        swapped = {(y, x, c, k, fh, fw, b, g) for x, y, c, k, fw, fh, b, g in listed}
        assert listed | swapped == expected
    else:
        assert listed == expected
    assert usual(layer, array) in [found.unroll(i) for i in range(len(trips))]


def test_a_large_array_has_mappings_that_fill_it() -> None:
    layer = parse_layer("conv4")
    found = mappings_of(layer, Array((128, 128)))
    assert not found.complete
    lanes = found.counts.prod(axis=1)
    assert lanes.max() > 0.9 * 128 * 128
    assert (lanes <= 128 * 128).all()
    assert (found.counts == [1, 1, 128, 128, 1, 1, 1, 1]).all(axis=1).any()


@examples(
    25,
    nests(window_innermost=False, divisors=False)
    | nests(window_innermost=False, divisors=False, sliding=True),
    st.data(),
    soak=60,
)
def test_no_nest_takes_less_than_its_mappings_bound(
    nest: Nest, data: st.DataObject
) -> None:
    layer = nest.layer
    machine = data.draw(
        st.sampled_from(
            [
                small_machine((8, 16, 8), 64),
                small_machine((4, 4, 4), 32, fills=True),
                small_machine((64, 64, 64), 512),
                Codesign(),
                Codesign(budget=40),
            ]
        )
    )
    counts = np.array([[nest.base(dim) for dim in DIMS]], dtype=np.int64)
    found = bounds_of(layer, counts, machine, 5.0, 1)
    assert found.steps[0] == datapath_steps(nest)
    memories = best_memories(machine.traffic(nest), machine)
    assert machine.evaluate(nest, memories) >= float(found.energy[0])


_TINY = (
    ((4, 3, 3, 5, 2, 1, 1, 1), (1, 1), (2, 2)),
    ((5, 1, 4, 3, 3, 1, 1, 1), (2, 1), (6,)),
    ((3, 3, 1, 1, 2, 2, 1, 3), (1, 1), (3, 2)),
    # Four columns of the window and one touch less than three and two.
    ((7, 1, 1, 1, 5, 1, 1, 1), (2, 1), (4, 2)),
)


@pytest.mark.parametrize(
    ("sizes", "stride", "sides", "fills"),
    [
        pytest.param(*tiny, fills, marks=[pytest.mark.soak] if i % 2 ^ fills else [])
        for i, tiny in enumerate(_TINY)
        for fills in (False, True)
    ],
)
def test_the_best_of_all_mappings_is_found(
    sizes: tuple[int, ...], stride: tuple[int, int], sides: tuple[int, ...], fills: bool
) -> None:
    """Against every unrolling that fits, also those that are left out as equal."""
    layer = Layer("tiny", *sizes[:6], B=sizes[6], G=sizes[7], stride=stride)
    machine = small_machine((8, 16, 8), 64, fills=fills)
    tried = [
        optimize(layer, unroll, machine, ONE)
        for unroll in every_unroll(layer, Array(sides))
    ]
    for one in tried:
        if not one.proved:
            nests_ = all_nests(layer, one.nest.unroll)
            made = (nest_of(layer, loops, one.nest.unroll) for loops in nests_)
            all_ = min(least_energy(count(nest), machine) for nest in made)
            assert one.energy == pytest.approx(all_, rel=1e-9)
    least = min(one.energy for one in tried)
    found = search_datapath(layer, Array(sides), machine, ONE)
    assert found.energy == pytest.approx(least, rel=1e-9)
    assert found.proved
    assert found.mapping is not None
    assert found.mapping.open == 0
    assert found.mapping.searched + found.mapping.pruned == found.mapping.mappings
    # Of mappings with the same energy the one of the fewest steps is taken.
    alike = [one for one in tried if one.energy <= least * (1 + 1e-10)]
    steps = min(datapath_steps(one.nest) for one in alike)
    assert datapath_steps(found.nest) == steps


def timed_machine() -> Fixed:
    machine = small_machine((16, 32, 16), 256)
    wide = dict.fromkeys(Tensor, 8.0)
    near, far = machine.hierarchy.levels
    levels = (replace(near, bandwidth=wide), replace(far, bandwidth=wide))
    return Fixed(replace(machine.hierarchy, levels=levels, dram_bandwidth=4.0))


@pytest.mark.parametrize("sides", [(2,), pytest.param((2, 2), marks=pytest.mark.soak)])
@pytest.mark.parametrize("minimize", ["cycles", "edp"])
def test_cycles_and_energy_times_cycles(minimize: str, sides: tuple[int, ...]) -> None:
    layer, array = Layer("tiny", 3, 1, 2, 3), Array(sides)
    options = replace(ONE, minimize=minimize)
    found = search_datapath(layer, array, timed_machine(), options)
    assert found.value is not None
    assert found.minimized == minimize
    every = [
        optimize(layer, unroll, timed_machine(), options)
        for unroll in every_unroll(layer, array)
    ]
    values = [one.value for one in every if one.value is not None]
    assert found.value <= min(values) * (1 + 1e-9)
    assert found.lower_bound is not None
    assert found.lower_bound <= min(values) * (1 + 1e-9)


def test_little_time_leaves_mappings_open() -> None:
    layer = parse_layer("conv4")
    found = search_datapath(layer, Array(), Codesign(), replace(ONE, time_limit=0.4))
    assert found.mapping is not None
    assert found.mapping.open > 0
    assert not found.proved
    assert not found.complete
    assert found.gap is not None
    assert found.gap > 0


def test_ctrl_c_keeps_the_best_mapping() -> None:
    pressed = []

    def press(_: object) -> None:
        pressed.append(1)
        if len(pressed) > 3:
            raise KeyboardInterrupt

    layer = parse_layer("conv1")
    found = search_datapath(layer, Array(), Codesign(), ONE, press)
    assert found.interrupted
    assert found.mapping is not None
    assert found.mapping.open > 0


def test_one_of_many_searches_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer("tiny", 2, 2, 2, 2)
    stopped = replace(optimize(layer, {}, DIANNAO, ONE), interrupted=True)
    where = "memplan.blocking.search.spatial.optimize"
    monkeypatch.setattr(where, lambda *_: stopped)
    with pytest.raises(KeyboardInterrupt):
        search_one_of(layer, {}, DIANNAO, ONE)


@pytest.mark.parametrize(
    ("text", "sides"),
    [("auto", (16, 16)), ("AUTO:256", (256,)), ("auto: 8x32", (8, 32)),
     ("auto:4x4x2", (4, 4, 2))],
)  # fmt: skip
def test_arrays_are_read(text: str, sides: tuple[int, ...]) -> None:
    assert parse_array(text) == Array(sides)


def test_other_texts_are_no_arrays() -> None:
    assert parse_array("C16,K16") is None
    assert parse_array("none") is None
    assert str(Array((4, 2))) == "4 x 2"
    assert str(Array((2048,))) == "2,048 multipliers"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auto:", "give auto, auto:256"),
        ("auto:16xx", "give auto, auto:256"),
        ("auto:0", "1 to 3 sides of 1 multiplier"),
        ("auto:2x2x2x2", "1 to 3 sides of 1 multiplier"),
        ("auto:4096x4096", "16,777,216 multipliers: it may have 1,048,576"),
    ],
)
def test_arrays_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_array(text)


def test_searches_that_have_no_bounds_are_refused() -> None:
    layer = Layer("tiny", 2, 2, 2, 2)
    with pytest.raises(UsageError, match="register tile, not auto"):
        search_datapath(layer, Array(), DIANNAO, Options(target="avx2"))
    with pytest.raises(UsageError, match="to minimize cycles takes"):
        search_datapath(layer, Array(), DIANNAO, Options(minimize="cycles"))


def test_a_front_is_of_the_mapping_taken() -> None:
    layer = Layer("tiny", 3, 1, 2, 3)
    options = replace(ONE, minimize="edp", front=True)
    found = search_datapath(layer, Array((2,)), timed_machine(), options)
    assert found.front
    assert found.mapping is not None


def test_ties_go_to_the_plainest() -> None:
    layer = Layer("tie", 4, 4, 1, 1)

    def result(unroll: dict[str, int], energy: float) -> Result:
        nest = nest_of(layer, [("X", 4), ("Y", 4)], unroll)
        return Result(nest, "whole", energy, 0.0, 1, True)

    less = result({"X": 2}, 1.0)
    assert better(less, result({"X": 4}, 1.1))
    assert better(result({"X": 4}, 1.0), less)  # fewer steps
    assert better(result({"X": 4}, 1.0), result({"X": 2, "Y": 2}, 1.0))
    cycles = replace(less, minimized="cycles", value=7.0)
    assert better(cycles, replace(cycles, energy=1.5))


def test_what_is_left_open() -> None:
    found = MappingSearch(Array(), 10, 6, 3)
    assert found.open == 1
    assert found.share({"C": 8, "K": 8}) == 0.25
