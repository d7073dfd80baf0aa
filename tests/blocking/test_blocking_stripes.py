"""Stripes of the input: where they lie, what they fetch, and what they are worth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import nests
from nest_trace import trace

from memplan.blocking.cost.evaluation import best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.counts import Buffer, count
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.plan import BlockingPlan, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from tests.blocking.test_blocking_trace import examples, may_coincide

INPUT = Tensor.INPUT
_Number = TypeVar("_Number", int, float)


def stripes(text: str, layer: Layer) -> list[tuple[int, int, int]]:
    """Of each: the loop that sweeps over it, elements, fills."""
    found = count(parse_nest(text, layer))[INPUT].stripes
    assert all(one.end == one.begin + 1 for one in found)
    return [(one.begin, one.elements, one.fills) for one in found]


def test_a_window_that_slides_along_a_row() -> None:
    layer = Layer("depthwise", 14, 14, 1, 1, 3, 3, G=2)
    # A window of 3 x 3, 14 rows of it, two such columns, and all of them.
    assert stripes("Fw3 Fh3 Y14 X2 X14 G2", layer) == [
        (2, 3 * 16, 2 * 14 * 3 * 16),
        (3, 4 * 16, 2 * 7 * 4 * 16),
        (4, 16 * 16, 2 * 16 * 16),
    ]


def test_no_stripe_where_tiles_do_not_overlap() -> None:
    layer = Layer("strided", 8, 8, 2, 1, 2, 3, stride=(2, 2))
    # Along X the window is as wide as its step; along Y, until its last row is inside.
    assert [one[0] for one in stripes("Fw2 X8 Fh2 Y4 Fh3 Y8 C2", layer)] == [5]
    assert [one[0] for one in stripes("Y8 X8 Fw2 Fh3 C2", layer)] == []


def test_the_run_of_a_loop_over_kernels_stands_for_a_stripe() -> None:
    layer = Layer("some", 8, 4, 2, 4, 3, 1)
    nest = parse_nest("Fw3 X4 K4 X8 C2 Y4", layer)
    (within,) = count(nest)[INPUT].stripes
    assert (within.begin, within.elements, within.fills) == (3, 10, 10 * 2 * 4)
    run = count(nest)[INPUT].buffers[1]
    assert (run.begin, run.elements, run.fills) == (2, 6, 2 * 6 * 2 * 4)


def test_stripes_are_no_part_of_what_is_counted_by_rule() -> None:
    layer = Layer("d", 14, 14, 1, 1, 3, 3, G=4)
    nest = parse_nest("Fw3 Fh3 Y14 X14 G4", layer)
    own = count(nest)[INPUT]
    assert own.stripes
    assert own.main == own.buffers[-1].fills == 9 * 196 * 4
    by_rule = evaluate(layer, nest)
    assert by_rule.pj("DRAM", INPUT) == 320 * own.main
    best = best_evaluation(layer, nest, Codesign())
    assert best.pj("DRAM", INPUT) == 320 * own.compulsory
    assert best.total < by_rule.total


def two_levels() -> Fixed:
    """Free registers, and memories of 2 / 8 / 2 and 128 / 256 / 64 KiB; fills count."""
    levels = [Level("registers", None, _sizes(32, 512, 32), _sizes(1e-9, 1e-9, 1e-9))]
    for name, kib in (("L0", (2, 8, 2)), ("L1", (128, 256, 64))):
        levels.append(Level(name, None, _sizes(*(n << 10 for n in kib)), {}))
    curves = Codesign().curves
    return Fixed(Hierarchy("m", "", "", tuple(levels), curves, 320.0, 1.0, True))


def _sizes(*own: _Number) -> dict[Tensor, _Number]:
    return dict(zip(Tensor, own, strict=True))


DEPTHWISE = Layer("depthwise", 14, 14, 1, 1, 3, 3, G=184)


@pytest.mark.parametrize(("method", "per_mac"), [("whole", 87.466), ("divisors", 88.2)])
def test_a_search_keeps_stripes_where_they_pay(method: str, per_mac: float) -> None:
    machine = two_levels()
    found = optimize(DEPTHWISE, {"G": 8}, machine, Options(method, threads=1))
    assert found.proved
    assert found.energy / DEPTHWISE.macs < per_mac
    again = parse_nest(str(found.nest), DEPTHWISE, {"G": 8})
    kept = best_evaluation(DEPTHWISE, again, machine)
    assert kept.total == pytest.approx(found.energy, rel=1e-9)
    stripes = [one for one in kept.buffers if kept.swept_by(one)]
    assert {one.level for one in stripes} >= {"L0"}
    # What one serves is what the one inside it fetches.
    own = [one.buffer for one in kept.buffers if one.tensor is INPUT]
    assert own[0].reads == count(again)[INPUT].demand
    assert [one.reads for one in own[1:]] == [one.fills for one in own[:-1]]
    # A loop is in two parts only where a stripe lies between them.
    swept = {kept.swept_by(one) for one in stripes}
    for inner, outer in itertools.pairwise(again.loops):
        assert inner.dim != outer.dim or inner in swept


def test_a_plan_holds_stripes() -> None:
    nest = parse_nest("Fw3 Fh3 Y14 X2 X14 G184", DEPTHWISE, {"G": 8})
    kept = best_evaluation(DEPTHWISE, nest, two_levels())
    assert kept.per_mac(kept.total) == pytest.approx(88.146, rel=1e-5)
    plan = BlockingPlan((PlannedLayer(kept, Search("whole", 0.0, None, False)),), "m")
    (again,) = load_plan(dump_plan(plan)).layers
    assert again.evaluation.buffers == kept.buffers
    swept = [str(again.evaluation.swept_by(one)) for one in again.evaluation.buffers]
    assert swept == ["X2", "X14", "None", "None"]


@given(
    nests(window_innermost=False, divisors=False, sliding=True),
    st.lists(st.booleans(), min_size=24, max_size=24),
)
@examples(150)
def test_counts_are_those_of_a_machine_with_any_of_the_buffers(
    nest: Nest, keep: Sequence[bool]
) -> None:
    check_kept(nest, keep)


@given(nests(window_innermost=True, divisors=True, sliding=True))
@examples(100)
def test_counts_are_exact_without_edges_where_windows_are_innermost(nest: Nest) -> None:
    own = count(nest)[INPUT]
    ends = {t: [b.end for b in of.choices] for t, of in count(nest).items()}
    *measured, _ = trace(nest, ends=ends)[INPUT]
    for buffer, row in zip(own.choices, measured, strict=True):
        assert (buffer.elements, buffer.fills) == (row.elements, row.fills)
        assert buffer.reads == row.reads or buffer in own.buffers


@pytest.mark.soak
def test_counts_of_many_nests_with_any_of_the_buffers() -> None:
    drawn = nests(window_innermost=False, divisors=False, sliding=True)
    keep = st.lists(st.booleans(), min_size=24, max_size=24)
    examples(5000)(given(drawn, keep)(check_kept))()


def check_kept(nest: Nest, keep: Sequence[bool]) -> None:
    """Nothing counted too little, nor too much without an explanation, of each tensor's
    buffers that `keep` says."""
    kept: dict[Tensor, list[Buffer]] = {}
    for tensor, own in count(nest).items():
        chosen = zip(own.choices, keep, strict=False)
        kept[tensor] = [one for one, wanted in chosen if wanted]
        for inner, outer in itertools.pairwise(own.choices):
            assert inner.elements <= outer.elements
            assert inner.outward >= outer.outward
    measured = trace(nest, ends={t: [b.end for b in own] for t, own in kept.items()})
    for tensor, buffers in kept.items():
        for place, buffer in enumerate(buffers):
            real, outer = measured[tensor][place : place + 2]
            assert real.elements == buffer.elements
            assert (real.fills, real.drains) == (outer.reads, outer.writes)
            assert real.fills <= buffer.fills
            assert real.fills == buffer.fills or may_coincide(nest, tensor, buffer.end)
