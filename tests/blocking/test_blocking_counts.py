"""Counts: our own cases and the reference ones, by hand, and what holds for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from nest_strategies import nests, traffic_of
from nest_trace import trace

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.paper import count_as_paper, paper_energy
from memplan.blocking.machine.energy import paper_curves, table_3
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.counts import Traffic, count, runs
from memplan.blocking.nest.layer import Layer, Tensor, elements
from memplan.blocking.nest.nest import Nest, parse_nest
from tests.blocking import nest_cases

every_case = nest_cases.every_case()


def nest_of(case: dict[str, Any]) -> Nest:
    sizes = {d: case["layer"][d] for d in ("X", "Y", "C", "K", "Fw", "Fh")}
    # The cases count what rounding up to the datapath adds; here it is in the layer.
    layer = Layer(case["layer"]["name"], **sizes).padded(case["unroll"])
    return parse_nest(case["string"], layer, case["unroll"])


def as_rows(traffic: Traffic) -> dict[str, Any]:
    return {
        "buffers": [
            {
                "elements": buffer.elements,
                "reads_served": buffer.reads,
                "writes_from_below": buffer.writes,
                "fills_from_above": buffer.fills,
                "drains_to_above": buffer.drains,
            }
            for buffer in traffic.buffers
        ],
        "dram_accesses": traffic.main,
    }


@every_case
def test_counts_are_equal(case: dict[str, Any]) -> None:
    for tensor, traffic in count(nest_of(case)).items():
        assert as_rows(traffic) == case["exact"][tensor.value]


@every_case
def test_the_papers_counts_are_equal(case: dict[str, Any]) -> None:
    for tensor, traffic in count_as_paper(nest_of(case)).items():
        expected = case["paper_literal"][tensor.value]
        assert traffic.alpha == expected["dram_alpha"]
        assert len(traffic.buffers) == len(expected["buffers"])
        for buffer, row in zip(traffic.buffers, expected["buffers"], strict=True):
            assert buffer.elements == row["elements"]
            assert buffer.refetch == pytest.approx(row["refetch_rate"], rel=1e-9)
            assert buffer.accesses == pytest.approx(row["accesses_eq1"], rel=1e-9)


@every_case
def test_energies_are_equal(case: dict[str, Any]) -> None:
    nest = nest_of(case)
    energy = evaluate(nest.layer, nest)
    expected = case["energy_codesign_pJ"]
    assert energy.total == pytest.approx(expected["total"], rel=1e-6)
    assert energy.sram_bytes == expected["sram_bytes"]
    for tensor in Tensor:
        one = energy.by_tensor[tensor]
        assert one == pytest.approx(expected[tensor.value], rel=1e-6)
    limited = evaluate(nest.layer, nest, Codesign(budget=8 << 20))
    assert limited.total == pytest.approx(case["energy_codesign_8MB_pJ"], rel=1e-6)
    literal = paper_energy(nest, paper_curves())
    expected = case["energy_codesign_paper_literal_pJ"]
    assert literal == pytest.approx(expected, rel=1e-6)


@every_case
@pytest.mark.parametrize(
    ("name", "key"), [("diannao", "pack_diannao"), ("xeon-e5645", "pack_westmere")]
)
def test_buffers_go_to_the_same_levels(
    case: dict[str, Any], name: str, key: str
) -> None:
    nest, expected = nest_of(case), case[key]
    packed = evaluate(nest.layer, nest, Fixed(load_hierarchy(name)))
    assert {one.name: one.level for one in packed.buffers} == expected["assign"]
    assert packed.total == pytest.approx(expected["total_pJ"], rel=1e-6)
    for level, row in expected["accesses"].items():
        served = [share for share in packed.shares if share.level == level]
        assert {share.tensor.value: share.accesses for share in served} == row


@nest_cases.needs_reference
@pytest.mark.parametrize("row", nest_cases.read(nest_cases.REFERENCE)["energy_table"])
def test_the_energy_of_an_access(row: dict[str, Any]) -> None:
    assert table_3(row["word"])(row["bytes"]) == pytest.approx(row["pJ"], rel=1e-6)


INPUT, KERNEL, OUTPUT = Tensor


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (INPUT, [(1, 2), (3, 6), (7, 8)]),  # K ends where a window begins
        (KERNEL, [(0, 1), (6, 7)]),
        (OUTPUT, [(2, 4), (5, 6), (8, 9)]),
    ],
)
def test_runs_are_adjacent_loops_that_use_a_tensor_again(
    tensor: Tensor, expected: list[tuple[int, int]]
) -> None:
    layer = Layer("small", 4, 1, 4, 8, Fw=3, Fh=3)
    nest = parse_nest("X2 K2 C2 Fw3 K4 Fh3 X4 K8 C4", layer)
    assert list(runs(nest, tensor)) == expected


def test_halos_that_coincide_are_counted_for_each() -> None:
    layer = Layer("t14", 4, 4, 4, 4, 2, 2)
    nest = parse_nest("K2 X2 Fw2 Fh2 C2 Y2 K4 X4 C4 Y4", layer)
    assert count(nest)[INPUT].buffers[0].fills == 512
    assert trace(nest)[INPUT][0].fills == 384


def test_a_buffer_that_saves_nothing_is_not_used() -> None:
    own = traffic_of(INPUT, 100, (1, 100), (8, 25), (16, 25), (32, 5))
    assert [buffer.elements for buffer in own.used] == [8, 32]


@given(nests(window_innermost=False, divisors=False))
@settings(deadline=None)
def test_what_leaves_a_buffer_is_what_the_next_one_serves(nest: Nest) -> None:
    for tensor, own in count(nest).items():
        assert own.alpha == elements(nest.layer, tensor)
        served, sizes = own.demand, [0]
        for buffer in own.buffers:
            assert buffer.reads + buffer.writes == served
            assert buffer.outward <= served
            assert buffer.elements >= sizes[-1]
            served, sizes = buffer.outward, [*sizes, buffer.elements]
        assert own.main == served >= own.compulsory


@given(nests(window_innermost=False, divisors=True))
@settings(deadline=None)
def test_of_kernels_the_papers_counts_are_exact(nest: Nest) -> None:
    exact, literal = count(nest), count_as_paper(nest)
    assert literal.keys() == exact.keys()
    if KERNEL in exact:
        accesses = [buffer.accesses for buffer in literal[KERNEL].buffers]
        assert accesses == [buffer.reads for buffer in exact[KERNEL].buffers]
