"""Which level each buffer goes to, by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import nests, traffic_of

from memplan.blocking.cost.objective import Fixed
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.machine.energy import paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest

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


def test_writing_what_was_fetched_costs_where_fills_count() -> None:
    found = packed(machine(100, 1000, private=True, fills=True), THREE, ONE)
    assert found.by_tensor[INPUT] == (1000 + 200) + 2 * (200 + 50) + 50 * 100
    assert found.by_tensor[KERNEL] == (100 + 10) + 10 * 100


def test_a_shared_level_closes_for_all() -> None:
    kernel = traffic_of(KERNEL, 800, (30, 8))  # 60 bytes besides the input's 40
    output = traffic_of(OUTPUT, 2, (1, 1))
    found = packed(machine(90, 1000, private=False), THREE, kernel, output)
    # IB1 would fit P1, in place of IB0.
    expected = named(IB0="P1", KB0="P2", IB1="P2", IB2="P2", OB0="P2")
    assert found.assigned == expected


def test_a_tensors_buffers_in_a_level_lie_over_each_other() -> None:
    found = packed(machine(100, private=False), THREE, ONE)
    # 80 bytes of the input and 20 of the kernel; IB2's 120 no longer fit.
    assert found.assigned == named(IB0="P1", IB1="P1", IB2="DRAM", KB0="DRAM")
    before = traffic_of(KERNEL, 300, (10, 10))
    found = packed(machine(100, private=False), THREE, before)
    assert found.assigned == named(IB0="P1", IB1="P1", IB2="DRAM", KB0="P1")


def test_a_buffer_passes_over_levels_that_are_too_small() -> None:
    found = packed(machine(10, 20, 50, private=True), traffic_of(INPUT, 9, (20, 3)))
    assert found.assigned == named(IB0="P3")
    assert found.accesses == {("P3", INPUT): 9, ("DRAM", INPUT): 3}


def test_what_fits_nowhere_is_served_by_main_memory() -> None:
    found = packed(machine(10, private=False), traffic_of(INPUT, 9, (6, 3)))
    assert found.assigned == named(IB0="DRAM")
    assert found.accesses == {("DRAM", INPUT): 9}
    assert found.total == 900


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
