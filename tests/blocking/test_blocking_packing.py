"""Which level each buffer goes to, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import nests, traffic_of

from memplan.blocking.cost.packing import Packed, buffer_name, pack
from memplan.blocking.machine.energy import paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.machine.hierarchy_file import load_hierarchy, presets
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


def packed(hierarchy: Hierarchy, *traffic: Traffic) -> Packed:
    return pack({own.tensor: own for own in traffic}, hierarchy)


THREE = traffic_of(INPUT, 1000, (20, 500), (40, 200), (60, 50))
ONE = traffic_of(KERNEL, 100, (10, 10))


def test_a_private_level_closes_for_its_tensor_alone() -> None:
    found = packed(machine(100, 1000, private=True), THREE, ONE)
    assert found.assigned == {"IB0": "P1", "IB1": "P1", "IB2": "P2", "KB0": "P1"}
    assert found.accesses == {
        "P1": {INPUT: 1000, KERNEL: 100},
        "P2": {INPUT: 200, KERNEL: 0},
        "DRAM": {INPUT: 50, KERNEL: 10},
    }
    assert found.by_tensor == {INPUT: 1000 + 2 * 200 + 50 * 100, KERNEL: 100 + 1000}
    assert found.compulsory == 2 * 100
    assert found.total == 6400 + 1100


def test_writing_what_was_fetched_costs_where_fills_count() -> None:
    found = packed(machine(100, 1000, private=True, fills=True), THREE, ONE)
    assert found.by_tensor[INPUT] == (1000 + 200) + 2 * (200 + 50) + 50 * 100
    assert found.by_tensor[KERNEL] == (100 + 10) + 10 * 100


def test_a_shared_level_closes_for_all() -> None:
    kernel = traffic_of(KERNEL, 800, (30, 8))  # 60 bytes besides the input's 40
    output = traffic_of(OUTPUT, 2, (1, 1))
    found = packed(machine(90, 1000, private=False), THREE, kernel, output)
    assert found.assigned == {
        "IB0": "P1",
        "KB0": "P2",
        "IB1": "P2",  # it would fit P1, in place of IB0
        "IB2": "P2",
        "OB0": "P2",
    }


def test_a_tensors_buffers_in_a_level_lie_over_each_other() -> None:
    found = packed(machine(100, private=False), THREE, ONE)
    # 80 bytes of the input and 20 of the kernel; IB2's 120 no longer fit.
    assert found.assigned == {"IB0": "P1", "IB1": "P1", "IB2": "DRAM", "KB0": "DRAM"}
    before = traffic_of(KERNEL, 300, (10, 10))
    found = packed(machine(100, private=False), THREE, before)
    assert found.assigned == {"IB0": "P1", "IB1": "P1", "IB2": "DRAM", "KB0": "P1"}


def test_a_buffer_passes_over_levels_that_are_too_small() -> None:
    found = packed(machine(10, 20, 50, private=True), traffic_of(INPUT, 9, (20, 3)))
    assert found.assigned == {"IB0": "P3"}
    assert found.accesses["P1"] == found.accesses["P2"] == {INPUT: 0}


def test_what_fits_nowhere_is_served_by_main_memory() -> None:
    found = packed(machine(10, private=False), traffic_of(INPUT, 9, (6, 3)))
    assert found.assigned == {"IB0": "DRAM"}
    assert found.accesses == {"P1": {INPUT: 0}, "DRAM": {INPUT: 9}}
    assert found.total == 900


def test_buffers_that_save_nothing_have_no_name() -> None:
    own = traffic_of(OUTPUT, 9, (1, 9), (2, 3))
    assert packed(machine(10, private=False), own).assigned == {"OB0": "P1"}
    assert buffer_name(KERNEL, 2) == "KB2"


@pytest.mark.parametrize("private", [True, False])
@given(nests(window_innermost=True, divisors=True), st.data())
@settings(deadline=None)
def test_levels_hold_what_they_are_given(
    private: bool, nest: Nest, data: st.DataObject
) -> None:
    sizes = sorted(data.draw(st.sets(st.integers(1, 2000), min_size=1, max_size=3)))
    traffic = count(nest)
    found = pack(traffic, machine(*sizes, private=private))
    names = [f"P{i}" for i in range(1, len(sizes) + 1)]
    largest = {(name, tensor): 0 for name in names for tensor in traffic}
    for tensor, own in traffic.items():
        depths = []
        for place, buffer in enumerate(own.used):
            level = found.assigned[buffer_name(tensor, place)]
            depths.append([*names, "DRAM"].index(level))
            if level != "DRAM":
                largest[level, tensor] = max(
                    largest[level, tensor], 2 * buffer.elements
                )
        assert depths == sorted(depths)
        served = [found.accesses[name][tensor] for name in names]
        assert max([*served, found.accesses["DRAM"][tensor]]) == own.demand
    for name, size in zip(names, sizes, strict=True):
        taken = [largest[name, tensor] for tensor in traffic]
        assert (max(taken) if private else sum(taken)) <= size


@pytest.mark.parametrize("name", presets())
@given(nest=nests(window_innermost=True, divisors=True))
@settings(deadline=None, max_examples=20)
def test_presets_pack_any_nest(name: str, nest: Nest) -> None:
    found = pack(count(nest), load_hierarchy(name))
    assert 0 < found.compulsory <= found.total
