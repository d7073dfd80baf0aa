"""Many nests at once have the energies that each has by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import nests

from memplan.blocking.cost.many import BatchEvaluator
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.errors import UsageError


def hierarchy(levels: Sequence[Level], count_fills: bool) -> Hierarchy:
    given = load_hierarchy("diannao")
    return replace(given, levels=tuple(levels), count_fills=count_fills)


def private(name: str, *nbytes: int) -> Level:
    return Level(name, None, dict(zip(Tensor, nbytes, strict=True)), {})


SMALL = private("small", 16, 24, 16)
MIDDLE = private("middle", 120, 200, 64)
OBJECTIVES: list[Objective] = [
    Codesign(),
    Codesign(count_fills=True),
    Codesign(budget=60),
    Codesign(budget=400, count_fills=True),
    Codesign(budget=0),
    Fixed(load_hierarchy("diannao")),
    Fixed(load_hierarchy("xeon-e5645")),
    Fixed(hierarchy([SMALL, MIDDLE], count_fills=False)),
    Fixed(hierarchy([SMALL, MIDDLE], count_fills=True)),
    Fixed(hierarchy([Level("l", 60, None, {}), Level("m", 300, None, {})], True)),
    Fixed(hierarchy([Level("l", 60, None, {}), MIDDLE], False)),
    Fixed(hierarchy([SMALL, Level("m", 300, None, {})], True)),
]


@settings(max_examples=200, deadline=None)
@given(
    nests(window_innermost=False, divisors=True, macs=5000),
    st.sampled_from(OBJECTIVES),
)
def test_energies_are_those_of_each_nest(nest: Nest, objective: Objective) -> None:
    order = tuple(loop.dim for loop in nest.loops)
    rows = [[loop.outer for loop in nest.loops]]
    for place, loop in enumerate(nest.loops):
        if any(other.dim == loop.dim for other in nest.loops[place + 1 :]):
            without = list(rows[0])
            without[place] = loop.inner  # a loop of one trip
            rows.append(without)
    extents = np.array(rows, dtype=np.int64).T.reshape(len(order), len(rows))
    energies = BatchEvaluator(nest.layer, nest.unroll, objective)(order, extents)
    assert energies.shape == (len(rows),)
    for row, energy in zip(rows, energies, strict=True):
        loops = list(zip(order, row, strict=True))
        alone = objective.evaluate(nest_of(nest.layer, loops, nest.unroll))
        assert energy == pytest.approx(alone, rel=1e-12)


def test_more_nests_than_are_evaluated_at_once() -> None:
    layer = Layer("l", 64, 64, 64, 64, 3, 3)
    sizes = 2 ** np.random.default_rng(0).integers(0, 7, size=(4, 10_000))
    extents = np.concatenate([sizes, np.full((6, 10_000), 64)])
    extents[4:6] = 3
    order = ("X", "Y", "C", "K", "Fw", "Fh", "K", "X", "C", "Y")
    evaluate = BatchEvaluator(layer, {}, Codesign())
    energies = evaluate(order, extents)
    some = [0, 4095, 4096, 9_999]
    assert energies[some].tolist() == [
        float(evaluate(order, extents[:, [i]])[0]) for i in some
    ]


def test_counts_beyond_what_a_float_holds() -> None:
    """2^56 multiplications: rounding must not make savings out of nothing."""
    layer = Layer("l", 1 << 14, 1 << 14, 1 << 14, 1 << 14)
    order = ("K", "X", "Y", "C", "K", "X")
    extents = np.array([[1 << 7], [1 << 3], [1 << 14], [1 << 14], [1 << 14], [1 << 14]])
    energy = BatchEvaluator(layer, {}, Codesign())(order, extents)[0]
    loops = [(d, int(n[0])) for d, n in zip(order, extents, strict=True)]
    alone = Codesign().evaluate(nest_of(layer, loops, {}))
    assert energy == pytest.approx(alone, rel=1e-12)


def test_a_layer_without_loops() -> None:
    layer = PAPER_LAYERS["fc1"]
    unroll = {"C": 200, "K": 100}
    for objective in OBJECTIVES:
        evaluate = BatchEvaluator(layer, unroll, objective)
        energies = evaluate((), np.empty((0, 1), dtype=np.int64))
        assert energies == objective.evaluate(nest_of(layer, [], unroll))


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(UsageError, match="budget of -1 bytes"):
        Codesign(budget=-1)
