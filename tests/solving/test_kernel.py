"""The compiled decoder: any order of priority, again and again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.core.problem import Problem
from memplan.core.verify import verify_offsets
from memplan.native import _dsa
from memplan.solving.placing import lifetimes, spans
from tests.solving import reference
from tests.strategies import problems


def decoder_of(problem: Problem) -> _dsa.BestFit:
    start, end = spans(problem)
    return _dsa.BestFit(
        start, end, problem.padded, problem.alignment, problem.length or 0
    )


@settings(max_examples=80, deadline=None)
@given(problems(), st.data())
def test_any_order_of_priority(problem: Problem, data: st.DataObject) -> None:
    """Two orders, one after the other, with one decoder."""
    decoder = decoder_of(problem)
    start, life = spans(problem)[0].tolist(), lifetimes(problem).tolist()
    for _ in range(2):
        order = data.draw(st.permutations(range(len(problem))))
        offsets = decoder.decode(np.array(order, dtype=np.int32))
        blocks = [
            reference.Block(
                i, start[i], life[i], int(problem.padded[i]), int(problem.alignment[i])
            )
            for i in order
        ]
        end = max((block.start + block.lifetime for block in blocks), default=0)
        left = 0 if problem.length else min((b.start for b in blocks), default=0)
        line = reference.Line(left, problem.length or end, 0)
        expected = reference.decode(blocks, [line], problem.length)
        assert offsets.tolist() == [expected[i] for i in range(len(problem))]
        peak = int((offsets + problem.size).max(initial=0))
        assert verify_offsets(problem, offsets, peak) == []


@settings(max_examples=50, deadline=None)
@given(problems(), st.data())
def test_some_blocks_may_be_left_out(problem: Problem, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(problem))))) if problem else {}
    order = np.array(sorted(chosen), dtype=np.int32)
    offsets = decoder_of(problem).decode(order)
    assert set(np.flatnonzero(offsets >= 0).tolist()) == set(chosen)


@settings(max_examples=50, deadline=None)
@given(problems())
def test_longest_first(problem: Problem) -> None:
    life = lifetimes(problem)
    rows = zip(life.tolist(), problem.size.tolist(), range(len(problem)), strict=True)
    expected = [i for *_, i in sorted(rows, key=lambda r: (-r[0], -r[1], r[2]))]
    assert _dsa.longest_first(life, problem.size).tolist() == expected


def test_threads_may_share_a_decoder() -> None:
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 2000, 2000)
    upper = lower + rng.integers(1, 200, 2000)
    size = rng.integers(1, 50, 2000)
    decoder = _dsa.BestFit(lower, upper, size)
    orders = [rng.permutation(2000).astype(np.int32) for _ in range(8)]
    alone = [decoder.decode(order).tolist() for order in orders]
    with ThreadPoolExecutor(4) as pool:
        together = [offsets.tolist() for offsets in pool.map(decoder.decode, orders)]
    assert together == alone


INT = np.array
ONE, TWO = INT([1]), INT([2])


def order(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((INT([0, 1]), TWO, ONE), "differ in length"),
        ((INT([2]), TWO, ONE), "lower < upper"),
        ((INT([-1]), TWO, ONE), "0 <= lower"),
        ((INT([0]), TWO, INT([0])), "size > 0"),
        ((INT([0]), TWO, ONE, INT([0])), "alignment > 0"),
        ((INT([0]), TWO, ONE, INT([1, 1])), "differ in length"),
        ((INT([0]), TWO, ONE, None, -1), "period is negative"),
        ((INT([3]), INT([4]), ONE, None, 3), "lower < period"),
        ((INT([0]), INT([4]), ONE, None, 3), "upper - lower <= period"),
    ],
)
def test_blocks_that_cannot_be(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _dsa.BestFit(*arguments)  # type: ignore[arg-type]


def test_orders_that_cannot_be() -> None:
    linear = _dsa.BestFit(INT([0, 0]), INT([2, 2]), INT([1, 1]))
    for blocks, message in (((0, 2), "does not exist"), ((1, 1), "twice")):
        with pytest.raises(ValueError, match=message):
            linear.decode(order(*blocks))
    with pytest.raises(ValueError, match="does not exist"):
        linear.decode(order(-1))
    circle = _dsa.BestFit(INT([0, 3]), INT([2, 5]), INT([1, 1]), None, 4)
    assert circle.decode(order(0), order(1)).tolist() == [1, 0]
    for rest, stack in (((), (0, 1)), ((0, 1), ())):
        with pytest.raises(ValueError, match="alive across 0"):
            circle.decode(order(*rest), order(*stack))
    with pytest.raises(ValueError, match="twice"):
        circle.decode(order(0, 1), order(1))


def test_gaps_are_not_filled_with_what_is_there_already() -> None:
    columns = (INT([0, 0]), INT([2, 2]), INT([1, 1]), INT([1, 1]))
    with pytest.raises(ValueError, match="twice"):
        _dsa.fill_gaps(*columns, INT([0, -1]), order(0, 1))
    with pytest.raises(ValueError, match="differ in length"):
        _dsa.fill_gaps(*columns, INT([0]), order(1))
