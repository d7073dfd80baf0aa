"""Our own cases and the reference ones: counts as integers, energies to 1e-6."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.paper import count_as_paper, paper_energy
from memplan.blocking.machine.energy import paper_curves, table_3
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import Layer, Tensor
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
