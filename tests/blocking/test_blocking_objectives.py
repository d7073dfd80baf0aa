"""Energy of memories of their own and of given levels: sums, limits, levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import nests, traffic_of

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.placement import MAIN, Placement
from memplan.blocking.machine.energy import DRAM_PJ, Curve, paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level, load_hierarchy, presets
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from tests.strategies import examples

INPUT, KERNEL, OUTPUT = Tensor
# One pJ for each access to a memory of up to 1000 bytes, and 100 for main memory.
Pj = dict[tuple[Tensor, str], float]
FLAT = dict.fromkeys(Tensor, Curve((1.0, 2.0), (1.0, 1.0), 1000, 100.0))
TRAFFIC = {
    INPUT: traffic_of(INPUT, 1000, (10, 100), (100, 50)),
    KERNEL: traffic_of(KERNEL, 500, (50, 20), (52, 10)),
    OUTPUT: traffic_of(OUTPUT, 6, (1, 2)),
}


def priced(machine: Codesign, traffic: Mapping[Tensor, Traffic] = TRAFFIC) -> Pj:
    """pJ by tensor and level."""
    found = {}
    for share in machine.shares(traffic, machine.place(traffic)):
        found[share.tensor, share.level] = share.pj
    return found


def of(tensor: Tensor, found: Pj) -> float:
    return sum(pj for (own, _), pj in found.items() if own is tensor)


def kept(placement: Placement) -> list[tuple[Tensor, int]]:
    return [(t, one.nbytes) for t, memories in placement.items() for one in memories]


def test_a_memory_pays_for_what_it_serves() -> None:
    machine = Codesign(FLAT)
    found = priced(machine)
    assert of(INPUT, found) == 1000 + 100 + 50 * 100
    assert of(KERNEL, found) == 500 + 20 + 10 * 100
    assert of(OUTPUT, found) == 6 + 2 * 100
    assert [found[tensor, MAIN] for tensor in Tensor] == [5000, 1000, 200]
    assert machine.sram_bytes(machine.place(TRAFFIC)) == 20 + 200 + 100 + 104 + 2


def test_fills_can_be_paid_for_on_both_sides() -> None:
    found = priced(Codesign(FLAT, count_fills=True))
    assert of(INPUT, found) == (1000 + 100) + (100 + 50) + 50 * 100
    on_chip = [pj for (_, level), pj in found.items() if level != MAIN]
    assert on_chip == [1100, 150, 520, 30, 8]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # Most used first: input 1100, kernel 520, input 150, kernel 30, output 8.
        (0, []),
        (19, [(OUTPUT, 2)]),  # an input's larger buffer stays out as well
        (20, [(INPUT, 20)]),
        (119, [(INPUT, 20), (OUTPUT, 2)]),
        (122, [(INPUT, 20), (KERNEL, 100), (OUTPUT, 2)]),
        (224, [(INPUT, 20), (KERNEL, 100), (KERNEL, 104)]),
        (320, [(INPUT, 20), (INPUT, 200), (KERNEL, 100)]),
        (322, [(INPUT, 20), (INPUT, 200), (KERNEL, 100), (OUTPUT, 2)]),
        (1000, [(INPUT, 20), (INPUT, 200), (KERNEL, 100), (KERNEL, 104), (OUTPUT, 2)]),
    ],
)
def test_a_budget_goes_to_what_is_used_most(
    budget: int, expected: list[tuple[Tensor, int]]
) -> None:
    machine = Codesign(FLAT, budget)
    placement = machine.place(TRAFFIC)
    assert kept(placement) == expected
    assert machine.sram_bytes(placement) <= budget


@examples(12, nests(window_innermost=False, divisors=False), st.booleans(), soak=30)
def test_every_buffer_that_saves_anything_has_a_memory(
    nest: Nest, count_fills: bool
) -> None:
    machine = Codesign(count_fills=count_fills)
    traffic = count(nest)
    placement = machine.place(traffic)
    for tensor, own in traffic.items():
        assert [m.buffers for m in placement[tensor]] == [(b,) for b in own.used]
    found = evaluate(nest.layer, nest, machine)
    assert found.total == pytest.approx(machine.evaluate(nest))
    compulsory = DRAM_PJ * sum(own.alpha for own in traffic.values())
    assert found.without_compulsory == pytest.approx(found.total - compulsory)


@examples(
    12, nests(window_innermost=True, divisors=True), st.integers(0, 4000), soak=30
)
def test_a_budget_is_kept_and_spent_from_the_inside_out(
    nest: Nest, budget: int
) -> None:
    traffic, free, limited = count(nest), Codesign(), Codesign(budget=budget)
    everything, placement = free.place(traffic), limited.place(traffic)
    assert limited.sram_bytes(placement) <= budget
    if budget >= free.sram_bytes(everything):
        assert placement == everything
    for tensor, own in traffic.items():
        inner = [memory.outermost for memory in placement[tensor]]
        assert tuple(inner) == own.used[: len(inner)]


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


INPUT, KERNEL, OUTPUT = Tensor


def machine(*sizes: int, private: bool, fills: bool = False) -> Hierarchy:
    """Levels of so many bytes, P1, P2... that cost 1, 2... pJ; 100 for main memory."""
    levels = tuple(
        Level(
            f"P{i}",
            None if private else size,
            dict.fromkeys(Tensor, size) if private else None,
            dict.fromkeys(Tensor, float(i)),
        )
        for i, size in enumerate(sizes, 1)
    )
    return Hierarchy("m", "", "", levels, paper_curves(), 100.0, 1.0, fills)


class Packed:
    """Levels of all buffers that save anything; what each level serves, and pJ."""

    def __init__(self, hierarchy: Hierarchy, traffic: Mapping[Tensor, Traffic]) -> None:
        machine = Fixed(hierarchy)
        placement = machine.place(traffic)
        shares = list(machine.shares(traffic, placement))
        self.total = sum(share.pj for share in shares)
        self.by_tensor = {
            tensor: sum(share.pj for share in shares if share.tensor is tensor)
            for tensor in traffic
        }
        self.accesses = {(one.level, one.tensor): one.accesses for one in shares}
        self.assigned = {}
        for tensor, own in traffic.items():
            inside = {b: m.level for m in placement[tensor] for b in m.buffers}
            for place, buffer in enumerate(own.used):
                self.assigned[tensor, place] = inside.get(buffer, MAIN)


def packed(hierarchy: Hierarchy, *traffic: Traffic) -> Packed:
    return Packed(hierarchy, {own.tensor: own for own in traffic})


def named(**levels: str) -> dict[tuple[Tensor, int], str]:
    """Levels by the paper's names of buffers: IB0 is the input's innermost."""
    letters = dict(zip("IKO", Tensor, strict=True))
    return {(letters[k[0]], int(k[2:])): level for k, level in levels.items()}


THREE = traffic_of(INPUT, 1000, (20, 500), (40, 200), (60, 50))
ONE = traffic_of(KERNEL, 100, (10, 10))


def test_a_private_level_closes_for_its_tensor_alone() -> None:
    found = packed(machine(100, 1000, private=True), THREE, ONE)
    assert found.assigned == named(IB0="P1", IB1="P1", IB2="P2", KB0="P1")
    assert found.accesses == {
        ("P1", INPUT): 1000,
        ("P2", INPUT): 200,
        ("DRAM", INPUT): 50,
        ("P1", KERNEL): 100,
        ("DRAM", KERNEL): 10,
    }
    assert found.by_tensor == {INPUT: 1000 + 2 * 200 + 50 * 100, KERNEL: 100 + 1000}
    assert found.total == 6400 + 1100


def test_a_buffer_passes_over_levels_that_are_too_small() -> None:
    found = packed(machine(10, 20, 50, private=True), traffic_of(INPUT, 9, (20, 3)))
    assert found.assigned == named(IB0="P3")
    assert found.accesses == {("P3", INPUT): 9, ("DRAM", INPUT): 3}


@pytest.mark.parametrize("private", [True, False])
@given(nests(window_innermost=True, divisors=True), st.data())
@settings(deadline=None)
def test_levels_hold_what_they_are_given(
    private: bool, nest: Nest, data: st.DataObject
) -> None:
    sizes = sorted(data.draw(st.sets(st.integers(1, 2000), min_size=1, max_size=3)))
    traffic = count(nest)
    found = Packed(machine(*sizes, private=private), traffic)
    names = [f"P{i}" for i in range(1, len(sizes) + 1)]
    largest = {(name, tensor): 0 for name in names for tensor in traffic}
    for tensor, own in traffic.items():
        depths = []
        for place, buffer in enumerate(own.used):
            level = found.assigned[tensor, place]
            depths.append([*names, "DRAM"].index(level))
            if level != "DRAM":
                largest[level, tensor] = max(
                    largest[level, tensor], 2 * buffer.elements
                )
        assert depths == sorted(depths)
        served = [n for (_, other), n in found.accesses.items() if other is tensor]
        assert max(served) == served[0] == own.demand
    for name, size in zip(names, sizes, strict=True):
        taken = [largest[name, tensor] for tensor in traffic]
        assert (max(taken) if private else sum(taken)) <= size
