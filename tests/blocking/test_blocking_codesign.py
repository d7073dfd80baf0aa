"""Energy where every buffer has its own memory: sums, the chip's limits, budgets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import strategies as st
from nest_strategies import nests, traffic_of

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.cost.placement import MAIN, Placement
from memplan.blocking.machine.energy import DRAM_PJ, Curve
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
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


def test_a_buffer_too_large_for_the_chip_is_main_memory() -> None:
    own = {INPUT: traffic_of(INPUT, 900, (10, 90), (501, 30), (502, 3))}
    machine = Codesign(FLAT)
    assert kept(machine.place(own)) == [(INPUT, 20)]
    assert of(INPUT, priced(machine, own)) == 900 + 90 * 100


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


def test_what_a_buffer_fetches_counts_as_its_use() -> None:
    own = {
        INPUT: traffic_of(INPUT, 100, (10, 90)),  # used 190 times
        KERNEL: traffic_of(KERNEL, 110, (10, 10)),  # 120 times
    }
    assert kept(Codesign(FLAT, 20).place(own)) == [(INPUT, 20)]


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
