"""Sliding buffers of the input: what they hold and fetch, in every search and bound."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import nests
from nest_trace import Machine, MissError, Sliding, trace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.evaluation import best_evaluation
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.cores_search import optimize_for_cores
from memplan.blocking.design.network_design import design_network
from memplan.blocking.design.parallel import best_cores_energy
from memplan.blocking.machine.hierarchy import Level, load_hierarchy
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.counts import Buffer, count
from memplan.blocking.nest.layer import DIMS, Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.plan import BlockingPlan, PlannedLayer, Search
from memplan.blocking.planfile import dump_plan, load_plan
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_datapath
from tests.blocking.test_blocking_trace import examples, may_coincide

INPUT = Tensor.INPUT
DIANNAO = load_hierarchy("diannao")
SLID = Fixed(DIANNAO.slid())
DEPTHWISE = Layer("depthwise", 14, 14, 1, 1, 3, 3, G=2)


def sliding(text: str, layer: Layer) -> list[tuple[str, int, int]]:
    """Of each: the loop that it slides along, elements, fills."""
    nest = parse_nest(text, layer)
    found = count(nest, sliding=True)[INPUT].sliding
    assert all(one.slides and one.end == one.begin + 1 for one in found)
    return [(str(nest.loops[o.begin]), o.elements, o.fills) for o in found]


def test_tiles_that_slide_are_filled_as_stripes_are() -> None:
    # 3 x 3 down a column; two columns of 16 x 3 and the next two; and so on.
    assert sliding("Fw3 Fh3 Y14 X2 X14 G2", DEPTHWISE) == [
        ("Y14", 3 * 3, 2 * 14 * 3 * 16),
        ("X2", 3 * 16, 2 * 7 * 4 * 16),
        ("X14", 4 * 16, 2 * 16 * 16),
    ]


def test_one_slides_inside_a_loop_over_kernels_where_no_stripe_is() -> None:
    layer = Layer("some", 8, 4, 2, 4, 3, 1)
    # Once for each kernel; then along the rest, with what K used again held.
    assert sliding("Fw3 X4 K4 X8 C2 Y4", layer) == [
        ("X4", 3, 6 * 4 * 2 * 2 * 4),
        ("X8", 6, 10 * 2 * 4),
    ]


def test_a_stride_wider_than_one_takes_in_as_many_columns() -> None:
    layer = Layer("strided", 9, 1, 1, 1, 5, 1, stride=(2, 1))
    # Four of nine outputs: 11 columns, then 8 and 2 more.
    assert sliding("Fw5 X4 X9", layer) == [("X4", 5, 11 * 2 + 5), ("X9", 11, 21)]


@given(
    nests(window_innermost=False, divisors=False, sliding=True),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
@examples(80)
def test_counts_are_those_of_rings_that_go_round(
    nest: Nest, keep: Sequence[bool]
) -> None:
    check_rings(nest, keep)


@pytest.mark.soak
def test_counts_of_many_rings() -> None:
    drawn = nests(window_innermost=False, divisors=False, sliding=True)
    keep = st.lists(st.booleans(), min_size=32, max_size=32)
    examples(5000)(given(drawn, keep)(check_rings))()


def check_rings(nest: Nest, keep: Sequence[bool]) -> None:
    """What sliding buffers fetch is exact; of others, nothing is counted too little,
    nor too much without an explanation."""
    own = count(nest, sliding=True)[INPUT]
    kept = [one for one, wanted in zip(own.choices, keep, strict=False) if wanted]
    for inner, outer in itertools.pairwise(own.choices):
        assert inner.elements <= outer.elements
        assert inner.outward >= outer.outward
    ends = {t: [b.end for b in of.buffers] for t, of in count(nest).items()}
    measured = trace(nest, ends={**ends, INPUT: list(map(_end, kept))})[INPUT]
    for place, buffer in enumerate(kept):
        real, outer = measured[place : place + 2]
        assert real.elements == buffer.elements
        assert real.fills == outer.reads
        assert real.fills <= buffer.fills
        if buffer.slides:
            assert real.fills == buffer.fills
        elif real.fills < buffer.fills:
            assert may_coincide(nest, INPUT, buffer.end)


def _end(buffer: Buffer) -> int | Sliding:
    return Sliding(buffer.begin) if buffer.slides else buffer.end


def test_a_ring_refuses_what_it_has_no_place_for() -> None:
    nest = parse_nest("Fw3 X4 C2 X8", Layer("some", 8, 1, 2, 1, 3, 1))
    # One channel's tile cannot slide while another's comes between: nothing is kept.
    machine = Machine(nest, ends={INPUT: [Sliding(3)], Tensor.KERNEL: [], **_OUTPUTS})
    ring = machine.memories[INPUT][0]
    whole = {dim: (0, nest.layer.size(dim)) for dim in DIMS}
    ring.visit(machine.touched(INPUT, {**whole, "X": (0, 4), "C": (0, 1)}))
    with pytest.raises(MissError, match="not in the ring"):
        ring.read(machine.touched(INPUT, {**whole, "X": (4, 8), "C": (0, 1)}))
    with pytest.raises(MissError, match="has no place"):
        ring.visit(machine.touched(INPUT, {**whole, "C": (0, 1)}))


_OUTPUTS: Mapping[Tensor, Sequence[int]] = {Tensor.OUTPUT: []}


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


def test_a_plan_holds_what_slides() -> None:
    nest = parse_nest("Fw3 Fh3 Y14 X14 G2", DEPTHWISE)
    kept = best_evaluation(DEPTHWISE, nest, Codesign(sliding=True))
    along = [str(kept.slides_along(one)) for one in kept.buffers]
    assert {"Y14", "X14"} & set(along)
    plan = BlockingPlan((PlannedLayer(kept, Search("whole", 0.0, None, False)),))
    (again,) = load_plan(dump_plan(plan)).layers
    assert again.evaluation.buffers == kept.buffers
    assert [str(again.evaluation.slides_along(o)) for o in kept.buffers] == along
    plain = best_evaluation(DEPTHWISE, nest, Codesign())
    plan = BlockingPlan((PlannedLayer(plain, Search("whole", 0.0, None, False)),))
    assert b"slides" not in dump_plan(plan)
