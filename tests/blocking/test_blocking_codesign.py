"""Energy where every buffer has its own memory: sums, the chip's limits, budgets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import nests, traffic_of

from memplan.blocking.cost.codesign import Energy, codesign_energy
from memplan.blocking.machine.energy import DRAM_PJ, Curve, paper_curves
from memplan.blocking.nest.counts import ELEMENT_BYTES, count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest

INPUT, KERNEL, OUTPUT = Tensor
# One pJ for each access to a memory of up to 1000 bytes, and 100 for main memory.
FLAT = dict.fromkeys(Tensor, Curve((1.0, 2.0), (1.0, 1.0), 1000, 100.0))
TRAFFIC = {
    INPUT: traffic_of(INPUT, 1000, (10, 100), (100, 50)),
    KERNEL: traffic_of(KERNEL, 500, (50, 20), (52, 10)),
    OUTPUT: traffic_of(OUTPUT, 6, (1, 2)),
}


def kept(energy: Energy) -> list[tuple[Tensor, int]]:
    return [(memory.tensor, memory.nbytes) for memory in energy.memories]


def test_a_memory_pays_for_what_it_serves() -> None:
    energy = codesign_energy(TRAFFIC, FLAT)
    assert energy.by_tensor == {
        INPUT: 1000 + 100 + 50 * 100,
        KERNEL: 500 + 20 + 10 * 100,
        OUTPUT: 6 + 2 * 100,
    }
    assert energy.main == {INPUT: 5000, KERNEL: 1000, OUTPUT: 200}
    assert energy.sram_bytes == 20 + 200 + 100 + 104 + 2
    assert energy.without_compulsory == energy.total - 3 * 100


def test_fills_can_be_paid_for_on_both_sides() -> None:
    energy = codesign_energy(TRAFFIC, FLAT, count_fills=True)
    assert energy.by_tensor[INPUT] == (1000 + 100) + (100 + 50) + 50 * 100
    assert [m.accesses for m in energy.memories] == [1100, 150, 520, 30, 8]


def test_a_buffer_too_large_for_the_chip_is_main_memory() -> None:
    own = {INPUT: traffic_of(INPUT, 900, (10, 90), (501, 30), (502, 3))}
    energy = codesign_energy(own, FLAT)
    assert kept(energy) == [(INPUT, 20)]
    assert energy.by_tensor[INPUT] == 900 + 90 * 100


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
    energy = codesign_energy(TRAFFIC, FLAT, budget=budget)
    assert kept(energy) == expected
    assert energy.sram_bytes <= budget


def test_what_a_buffer_fetches_counts_as_its_use() -> None:
    own = {
        INPUT: traffic_of(INPUT, 100, (10, 90)),  # used 190 times
        KERNEL: traffic_of(KERNEL, 110, (10, 10)),  # 120 times
    }
    assert kept(codesign_energy(own, FLAT, budget=20)) == [(INPUT, 20)]


def test_a_buffer_that_fits_stays_out_behind_one_that_does_not() -> None:
    own = {INPUT: traffic_of(INPUT, 900, (10, 90), (3, 30))}
    energy = codesign_energy(own, FLAT, budget=10)
    assert energy.memories == ()
    assert energy.total == 900 * 100


@given(nests(window_innermost=False, divisors=False), st.booleans())
@settings(deadline=None)
def test_memories_and_main_memory_make_up_each_tensor(
    nest: Nest, count_fills: bool
) -> None:
    traffic = count(nest)
    energy = codesign_energy(traffic, paper_curves(), count_fills=count_fills)
    for tensor, total in energy.by_tensor.items():
        memories = [m for m in energy.memories if m.tensor is tensor]
        parts = sum(m.pj for m in memories) + energy.main[tensor]
        assert total == pytest.approx(parts)
        sizes = [ELEMENT_BYTES * buffer.elements for buffer in traffic[tensor].used]
        assert [m.nbytes for m in memories] == sizes
    assert energy.total == pytest.approx(sum(energy.by_tensor.values()))
    compulsory = DRAM_PJ * sum(own.alpha for own in traffic.values())
    assert energy.without_compulsory == pytest.approx(energy.total - compulsory)


@given(nests(window_innermost=True, divisors=True), st.integers(0, 4000))
@settings(deadline=None)
def test_a_budget_is_kept_and_spent_from_the_inside_out(
    nest: Nest, budget: int
) -> None:
    traffic, curves = count(nest), paper_curves()
    free = codesign_energy(traffic, curves)
    held = codesign_energy(traffic, curves, budget=budget)
    assert held.sram_bytes <= budget
    if budget >= free.sram_bytes:
        assert held == free
    for tensor in traffic:
        inner = [m.buffer for m in held.memories if m.tensor is tensor]
        assert tuple(inner) == traffic[tensor].used[: len(inner)]
