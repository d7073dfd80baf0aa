"""An evaluation agrees with what searches minimise, and its parts add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy import load_hierarchy, presets
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest

CONV5 = PAPER_LAYERS["conv5"]
NESTS = [
    (CONV5, "X4 Y7 Fw3 Fh3 X28 K64 C128 Y28 C256 K512", {"C": 16, "K": 16}),
    (PAPER_LAYERS["conv1"], "X4 C16 Fw11 Fh11 C256 K384 X256 Y256", {"C": 16, "K": 16}),
    (PAPER_LAYERS["pool"], "Fw2 Fh2 X56 G16 Y56 G128", {}),
    (PAPER_LAYERS["fc2"], "C64 K32 C4096 K4096", {}),
    (
        Layer("edge", 7, 5, 3, 10, 3, 3, stride=(2, 2)),
        "X3 C2 K4 Fw3 Fh3 X7 Y5 C3 K10",
        {},
    ),
]
MACHINES: list[Objective] = [
    Codesign(),
    Codesign(count_fills=True),
    Codesign(budget=20_000),
    Codesign(budget=0),
    *(Fixed(load_hierarchy(name)) for name in presets()),
    *(Fixed(replace(load_hierarchy(name), count_fills=True)) for name in presets()),
]


def nest_of(case: tuple[Layer, str, dict[str, int]]) -> Nest:
    layer, string, unroll = case
    return parse_nest(string, layer, unroll)


@pytest.mark.parametrize("case", NESTS, ids=lambda case: case[0].name)
@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_what_searches_minimise(
    case: tuple[Layer, str, dict[str, int]], machine: Objective
) -> None:
    nest = nest_of(case)
    found = evaluate(case[0], nest, machine)
    assert found.total == pytest.approx(machine.evaluate(nest), rel=1e-12)
    for parts in (
        [found.pj(level) for level in found.levels],
        [found.pj(tensor=tensor) for tensor in Tensor],
    ):
        assert sum(parts) == pytest.approx(found.total, rel=1e-12)
    assert found.levels[-1] == "DRAM"
    assert {placed.level for placed in found.buffers} <= set(found.levels)
    assert 0 < found.without_compulsory + found.compulsory <= found.total * (1 + 1e-12)


def test_energy_is_for_the_multiplications_that_are_needed() -> None:
    layer = PAPER_LAYERS["conv3"]
    nest = parse_nest("Fw4 Fh4 X32 Y32 C112 K208", layer, {"C": 16, "K": 16})
    found = evaluate(layer, nest)
    assert found.per_mac(found.total) == found.total / (32 * 32 * 108 * 200 * 16)


def test_bytes_on_the_chip_are_those_of_all_memories() -> None:
    assert load_hierarchy("diannao").nbytes == 36 << 10
    assert load_hierarchy("xeon-e5645").nbytes == (32 + 256 + 12 * 1024) << 10
