"""Stripes and sliding buffers of the input: what they hold and fetch, in every search
and bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import nests
from nest_trace import Sliding, trace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.evaluation import best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.cores_search import optimize_for_cores
from memplan.blocking.design.network_design import design_network
from memplan.blocking.design.parallel import best_cores_energy
from memplan.blocking.machine.hierarchy import Hierarchy, Level, load_hierarchy
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.counts import Buffer, count
from memplan.blocking.nest.layer import Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.plan import BlockingPlan, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_datapath
from tests.blocking.test_blocking_trace import examples, may_coincide

INPUT = Tensor.INPUT
DIANNAO = load_hierarchy("diannao")
ROW = Layer("depthwise", 14, 14, 1, 1, 3, 3, G=2)
DEPTHWISE = Layer("depthwise", 14, 14, 1, 1, 3, 3, G=184)
_Number = TypeVar("_Number", int, float)


def buffers(text: str, layer: Layer, *, sliding: bool) -> list[tuple[str, int, int]]:
    """Of each stripe, or sliding buffer: the loop that sweeps over it or that it slides
    along, elements, fills."""
    nest = parse_nest(text, layer)
    own = count(nest, sliding=sliding)[INPUT]
    found = own.sliding if sliding else own.stripes
    assert all(one.end == one.begin + 1 for one in found)
    assert all(one.slides == sliding for one in found)
    return [(str(nest.loops[one.begin]), one.elements, one.fills) for one in found]


def test_a_window_that_slides_along_a_row() -> None:
    # Stripes: a window of 3 x 3, 14 rows of it, two such columns, and all of them.
    text = "Fw3 Fh3 Y14 X2 X14 G2"
    fills = [2 * 14 * 3 * 16, 2 * 7 * 4 * 16, 2 * 16 * 16]
    sizes = [3 * 16, 4 * 16, 16 * 16]
    loops = ["Y14", "X2", "X14"]
    stripes = list(zip(loops, sizes, fills, strict=True))
    assert buffers(text, ROW, sliding=False) == stripes
    # 3 x 3 down a column; two columns of 16 x 3 and the next two; and so on: smaller,
    # and filled as stripes are.
    slid = list(zip(loops, [3 * 3, 3 * 16, 4 * 16], fills, strict=True))
    assert buffers(text, ROW, sliding=True) == slid


def test_no_stripe_where_tiles_do_not_overlap() -> None:
    layer = Layer("strided", 8, 8, 2, 1, 2, 3, stride=(2, 2))
    # Along X the window is as wide as its step; along Y, until its last row is inside.
    found = buffers("Fw2 X8 Fh2 Y4 Fh3 Y8 C2", layer, sliding=False)
    assert [loop for loop, *_ in found] == ["Y8"]
    assert buffers("Y8 X8 Fw2 Fh3 C2", layer, sliding=False) == []


def test_a_stride_wider_than_one_takes_in_as_many_columns() -> None:
    layer = Layer("strided", 9, 1, 1, 1, 5, 1, stride=(2, 1))
    # Four of nine outputs: 11 columns, then 8 and 2 more.
    found = buffers("Fw5 X4 X9", layer, sliding=True)
    assert found == [("X4", 5, 11 * 2 + 5), ("X9", 11, 21)]


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


def test_a_plan_holds_stripes_and_what_slides() -> None:
    nest = parse_nest("Fw3 Fh3 Y14 X2 X14 G184", DEPTHWISE, {"G": 8})
    striped = best_evaluation(DEPTHWISE, nest, two_levels())
    assert striped.per_mac(striped.total) == pytest.approx(88.146, rel=1e-5)
    swept = [str(striped.swept_by(one)) for one in striped.buffers]
    assert swept == ["X2", "X14", "None", "None"]
    slid = best_evaluation(DEPTHWISE, nest, Codesign(sliding=True))
    along = [str(slid.slides_along(one)) for one in slid.buffers]
    assert {"Y14", "X14"} & set(along)
    for kept in (striped, slid):
        plan = BlockingPlan((PlannedLayer(kept, Search("whole", 0.0, None, False)),))
        assert (b"slides" in dump_plan(plan)) == (kept is slid)
        (again,) = load_plan(dump_plan(plan)).layers
        assert again.evaluation.buffers == kept.buffers
        assert [str(again.evaluation.swept_by(o)) for o in kept.buffers] == [
            str(kept.swept_by(o)) for o in kept.buffers
        ]


DRAWN = nests(window_innermost=False, divisors=False, sliding=True)
KEEP = st.lists(st.booleans(), min_size=32, max_size=32)


@pytest.mark.parametrize("sliding", [False, True])
@given(nest=DRAWN, keep=KEEP)
@examples(80)
def test_counts_are_those_of_a_machine_with_any_of_the_buffers(
    sliding: bool, nest: Nest, keep: Sequence[bool]
) -> None:
    check_kept(nest, keep, sliding)


@pytest.mark.soak
@pytest.mark.parametrize("sliding", [False, True])
def test_counts_of_many_nests_with_any_of_the_buffers(sliding: bool) -> None:
    def check(nest: Nest, keep: Sequence[bool]) -> None:
        check_kept(nest, keep, sliding)

    examples(5000)(given(DRAWN, KEEP)(check))()


def check_kept(nest: Nest, keep: Sequence[bool], sliding: bool) -> None:
    """Nothing counted too little, nor too much without an explanation, of each tensor's
    buffers that `keep` says; what sliding buffers fetch is exact."""
    kept: dict[Tensor, list[Buffer]] = {}
    for tensor, own in count(nest, sliding=sliding).items():
        chosen = zip(own.choices, keep, strict=False)
        kept[tensor] = [one for one, wanted in chosen if wanted]
        for inner, outer in itertools.pairwise(own.choices):
            assert inner.elements <= outer.elements
            assert inner.outward >= outer.outward
    measured = trace(nest, ends={t: list(map(_end, own)) for t, own in kept.items()})
    for tensor, buffers in kept.items():
        for place, buffer in enumerate(buffers):
            real, outer = measured[tensor][place : place + 2]
            assert real.elements == buffer.elements
            assert (real.fills, real.drains) == (outer.reads, outer.writes)
            assert real.fills <= buffer.fills
            if buffer.slides:
                assert real.fills == buffer.fills
            elif real.fills < buffer.fills:
                assert may_coincide(nest, tensor, buffer.end)


def _end(buffer: Buffer) -> int | Sliding:
    return Sliding(buffer.begin) if buffer.slides else buffer.end


@given(nests(window_innermost=True, divisors=True, sliding=True))
@examples(100)
def test_counts_are_exact_without_edges_where_windows_are_innermost(nest: Nest) -> None:
    own = count(nest)[INPUT]
    ends = {t: [b.end for b in of.choices] for t, of in count(nest).items()}
    *measured, _ = trace(nest, ends=ends)[INPUT]
    for buffer, row in zip(own.choices, measured, strict=True):
        assert (buffer.elements, buffer.fills) == (row.elements, row.fills)
        assert buffer.reads == row.reads or buffer in own.buffers


def test_levels_that_do_not_slide_hold_no_sliding_buffer() -> None:
    layer = parse_layer("16,16,12,12,3,3")
    nest = parse_nest("Fw3 Fh3 Y12 X12", layer, {"C": 16, "K": 16})
    # A tile of 288 bytes, and a stripe of 1,344, of which the first alone fits.
    registers = dict.fromkeys(Tensor, 512)
    level = Level("registers", None, registers, dict.fromkeys(Tensor, 1.0))
    machine = Fixed(replace(DIANNAO, levels=(level,)))
    plain = best_memories(machine.traffic(nest), machine)
    able = Fixed(machine.hierarchy.slid())
    assert [one for one in plain if one.slides] == []
    assert [one.slides for one in best_memories(able.traffic(nest), able)].count(True)


def test_bounds_of_mappings_where_buffers_slide() -> None:
    layer = Layer("some", 7, 5, 2, 3, 3, 3)
    machine = Fixed(DIANNAO.slid())
    found = search_datapath(layer, Array((4, 2)), machine, Options(threads=1))
    assert found.mapping is not None
    assert found.proved
    for unroll in ({"X": 4}, {"C": 2, "K": 3}, {"Fw": 3, "Y": 2}, {"X": 4, "Fh": 2}):
        one = optimize(layer, unroll, machine, Options(threads=1))
        assert found.energy <= one.energy * (1 + 1e-9)


def test_several_cores_and_the_last_memory() -> None:
    layer = Layer("some", 16, 16, 8, 8, 5, 5)
    able = Codesign(sliding=True)
    one = optimize(layer, {}, able, Options("divisors", threads=1)).nest
    for split in ("k", "xy"):
        energies = [
            best_cores_energy(one, cores, split, machine).total
            for machine in (Codesign(), able)
            for cores in (1, 4)
        ]
        assert energies[2] < energies[0]
        assert energies[3] <= energies[1]
    # Of two cores that split the image, neither has what the other's tile slid over.
    nest = parse_nest("Fw5 X16", Layer("row", 16, 1, 1, 1, 5, 1))
    small = replace(able, budget=40)
    assert best_cores_energy(nest, 1, "xy", small) != best_cores_energy(
        nest, 1, "xy", replace(small, sliding=False)
    )
    assert best_cores_energy(nest, 2, "xy", small) == best_cores_energy(
        nest, 2, "xy", replace(small, sliding=False)
    )
    (found,) = optimize_for_cores(one, [(4, "k")], able, Options(time_limit=0.1))
    assert found.lower_bound <= found.energy.total


def test_memories_for_a_network_that_slide() -> None:
    layers = [Layer("one", 12, 12, 4, 8, 3, 3), Layer("two", 6, 6, 8, 8, 3, 3)]
    plain, able = (
        design_network(
            layers, {}, 2048, levels=1, objective=objective, options=Options("divisors")
        ).network
        for objective in (Codesign(), Codesign(sliding=True))
    )
    assert not plain.hierarchy.sliding
    assert able.hierarchy.sliding
    assert able.energy <= plain.energy
    for one in able.layers:
        counted = Fixed(able.hierarchy).evaluate(one.result.nest, one.result.memories)
        assert counted == pytest.approx(one.result.energy, rel=1e-9)
