"""Cycles: against a walk with a clock, by hand, and the least of all nests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from nest_strategies import nests
from nest_timing import all_choices, overlapped_cycles, serial_cycles, timed_hierarchy

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.latency import latency
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.placement import MAIN, BufferMemory, Memory, Placement
from memplan.blocking.cost.timed_memories import best_ways, timed, ways
from memplan.blocking.machine.hierarchy import Hierarchy, load_hierarchy
from memplan.blocking.nest.counts import Traffic
from memplan.blocking.nest.layer import Layer, Tensor, parse_layer
from memplan.blocking.nest.nest import Nest, nest_of, parse_nest
from memplan.blocking.nest.precision import Precision
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.errors import UsageError
from tests.blocking.test_blocking_whole import all_nests, tiny
from tests.strategies import examples


def single(hierarchy: Hierarchy, fast: bool = True) -> Hierarchy:
    """No level double-buffered; fast: the innermost feeds the datapath at any rate."""
    levels = [replace(one, double_buffered=False) for one in hierarchy.levels]
    if fast:
        rates = dict.fromkeys(Tensor, 1e9)
        levels[0] = replace(levels[0], bandwidth=rates)
    return replace(hierarchy, levels=tuple(levels))


@examples(
    25,
    nests(window_innermost=False, divisors=False, macs=60),
    st.integers(0, 1000),
    st.sampled_from((Precision(), Precision(8, 4, 32, 8))),
    soak=60,
)
def test_without_double_buffers_it_is_a_clock_that_stands(
    nest: Nest, seed: int, bits: Precision
) -> None:
    rng = random.Random(seed)
    hierarchy = replace(single(timed_hierarchy(rng)), precision=bits)
    machine = Fixed(hierarchy)
    traffic = machine.traffic(nest)
    choices = list(all_choices(traffic, hierarchy))
    placement = machine.place(traffic, rng.choice(_innermost(choices) or choices))
    found = latency(nest, traffic, placement, hierarchy)
    if all(own and own[0].level == "L0" for own in placement.values()):
        walked = serial_cycles(nest, placement, hierarchy)
        assert found.cycles == pytest.approx(walked, rel=1e-6)
    assert found.cycles >= max(port.cycles for port in found.ports) * (1 - 1e-12)
    assert found.cycles == pytest.approx(found.steps + sum(found.stalls.values()))


def _innermost(
    choices: Sequence[tuple[BufferMemory, ...]],
) -> list[tuple[BufferMemory, ...]]:
    """Those that keep most tensors in the innermost level."""
    counts = [sum(one.level == "L0" for one in own) for own in choices]
    return [own for own, n in zip(choices, counts, strict=True) if n == max(counts)]


def one_each(nest: Nest, traffic: dict[Tensor, Traffic]) -> Placement:
    """Each tensor's outermost buffer in the one level."""
    return {
        t: (Memory("L", 1.0, (own.buffers[-1],)),) if own.buffers else ()
        for t, own in traffic.items()
    }


@examples(
    25,
    nests(window_innermost=False, divisors=False, macs=80),
    st.sampled_from((0.25, 1.0, 3.0, 8.0)),
    soak=80,
)
def test_double_buffers_hide_no_more_than_they_can(nest: Nest, dram: float) -> None:
    hierarchy = one_level(double=True, dram=dram)
    traffic = Fixed(hierarchy).traffic(nest)
    placement = one_each(nest, traffic)
    found = latency(nest, traffic, placement, hierarchy)
    buffers = {t: own[0].outermost for t, own in placement.items() if own}
    alone = latency(nest, traffic, placement, one_level(double=False, dram=dram))
    if len(buffers) == len(traffic):
        bits = dict.fromkeys(Tensor, 16)
        walked = overlapped_cycles(nest, buffers, bits, dram)
        assert found.cycles <= walked * (1 + 1e-9)
        assert walked <= alone.cycles * (1 + 1e-9)
    assert found.cycles <= alone.cycles * (1 + 1e-9)


def one_level(double: bool, dram: float, rate: float = 1e9) -> Hierarchy:
    made = load_hierarchy("diannao")
    level = replace(
        made.levels[0],
        name="L",
        private_bytes=dict.fromkeys(Tensor, 1 << 20),
        bandwidth=dict.fromkeys(Tensor, rate),
        double_buffered=double,
    )
    return replace(made, levels=(level,), dram_bandwidth=dram)


def test_ports_and_bandwidths_by_hand() -> None:
    layer = Layer("hand", 4, 1, 2, 2)
    nest = parse_nest("C2 X4 K2", layer)
    level = one_level(double=False, dram=4.0, rate=8.0)
    machine = Fixed(replace(level, precision=Precision(8, 8, 32, 8)))
    traffic = machine.traffic(nest)
    choices = all_choices(traffic, machine.hierarchy)
    choice = next(chosen for chosen in choices if len(chosen) == 3)
    found = timed(nest, machine, choice).latency
    ports = {(one.level, one.tensor): one for one in found.ports}
    # 16 steps read 16 bytes of input; 8 elements of it come in once.
    assert ports["L", Tensor.INPUT].nbytes == 16 + 8
    # Sums of 4 bytes: 8 results, written twice, the last time as a byte; read once.
    assert ports["L", Tensor.OUTPUT].nbytes >= 8 * 4 + 8 * 4 + 8
    assert ports[MAIN, None].bandwidth == 4.0
    two = replace(
        machine.hierarchy, dram_ports=2, levels=(replace(level.levels[0], ports=2),)
    )
    other = latency(nest, traffic, machine.place(traffic, choice), two)
    split = [one for one in other.ports if one.level == MAIN]
    assert {one.way for one in split} == {"reads", "writes"}
    total = sum(one.nbytes for one in split)
    assert total == ports[MAIN, None].nbytes


def test_without_bandwidth_cycles_are_the_datapaths() -> None:
    layer = parse_layer("conv3")
    nest = parse_nest("X4 Y4 Fw4 Fh4 C108 X32 Y32 K200", layer, {"C": 16, "K": 16})
    machine = Fixed(load_hierarchy("xeon-e5645"))
    traffic = machine.traffic(nest)
    found = latency(nest, traffic, machine.place(traffic), machine.hierarchy)
    assert not found.bounded
    assert found.cycles == found.steps == 32 * 32 * 7 * 13 * 16
    for objective in (machine, Codesign()):
        for minimize in ("cycles", "edp"):
            options = Options(minimize=minimize)
            with pytest.raises(UsageError, match="bandwidth"):
                optimize(layer, {}, objective, options)
    with pytest.raises(UsageError, match="cannot be minimized"):
        optimize(layer, {}, machine, Options(minimize="area"))


def test_bounds_hold_for_all_nests_and_memories() -> None:
    proved = equal = checked = 0
    for seed in range(10):
        rng = random.Random(seed)
        layer, unroll = tiny(rng)
        machine = Fixed(timed_hierarchy(rng))
        each = [nest_of(layer, loops, unroll) for loops in all_nests(layer, unroll)]
        pairs = [
            (nest, choice)
            for nest in each
            for choice in all_choices(machine.traffic(nest), machine.hierarchy)
        ]
        if len(pairs) > 300:
            continue
        checked += 1
        least = {"energy": 1e99, "cycles": 1e99, "edp": 1e99}
        for nest, choice in pairs:
            one = timed(nest, machine, choice)
            least = {k: min(v, one.value(k)) for k, v in least.items()}
        for what in ("cycles", "edp"):
            options = Options(minimize=what, threads=1)
            found = optimize(layer, unroll, machine, options)
            where = f"seed {seed}: {layer}, {unroll}, {machine}, {what}"
            assert found.value is not None, where
            assert found.lower_bound is not None, where
            assert found.value >= least[what] * (1 - 1e-9), where
            assert found.lower_bound <= least[what] * (1 + 1e-9), where
            if found.proved:
                assert found.value == pytest.approx(least[what], rel=1e-9), where
            again = timed(found.nest, machine, found.memories or ())
            assert again.value(what) == found.value
            proved += found.proved
            equal += found.value <= least[what] * (1 + 1e-9)
    assert checked > 2
    assert proved
    assert equal > checked


def test_the_front_is_sorted_and_unbeaten() -> None:
    layer = parse_layer("64,64,14,14,3,3")
    made = load_hierarchy("diannao")
    machine = Fixed(replace(made, dram_bandwidth=4.0))
    options = Options("divisors", minimize="edp", front=True, threads=1)
    found = optimize(layer, {"C": 16, "K": 16}, machine, options)
    energies = [one.energy for one in found.front]
    cycles = [one.cycles for one in found.front]
    assert energies == sorted(energies, reverse=True)
    assert cycles == sorted(cycles)
    assert found.front
    for point in found.front:
        nest = parse_nest(point.string, layer, {"C": 16, "K": 16})
        assert any(
            one.energy == point.energy and one.cycles == point.cycles
            for one in ways(nest, machine)
        )
    least = optimize(layer, {"C": 16, "K": 16}, machine, Options("divisors"))
    assert energies[-1] == pytest.approx(least.energy, rel=1e-9)
    assert best_ways(found.nest, machine, "edp").edp <= found.value  # type: ignore[operator]


@pytest.mark.parametrize("alike", [False, True])
def test_levels_keep_their_order_whatever_they_cost(alike: bool) -> None:
    """Where one further out is the cheaper one, as in cycles it may be, and where all
    cost the same: the least of all choices, in levels that have room for it."""
    checked = 0
    for seed in (13, 290, 591):
        rng = random.Random(seed)
        layer, unroll = tiny(rng)
        hierarchy = timed_hierarchy(rng)
        if alike:
            same = [
                replace(one, pj=dict.fromkeys(Tensor, 1.0)) for one in hierarchy.levels
            ]
            hierarchy = replace(hierarchy, levels=tuple(same))
        machine = Fixed(hierarchy)
        names = [level.name for level in hierarchy.levels]
        each = list(all_nests(layer, unroll))
        rng.shuffle(each)
        for loops in each[:2]:
            nest = nest_of(layer, loops, unroll)
            traffic = machine.traffic(nest)
            for one in ways(nest, machine):
                for tensor in traffic:
                    own = [b.level for b in one.choice if b.tensor is tensor]
                    depths = [names.index(name or "") for name in own]
                    assert depths == sorted(set(depths)), seed
            every = all_choices(traffic, hierarchy)
            least = min(machine.evaluate(nest, choice) for choice in every)
            found = machine.evaluate(nest, best_memories(traffic, machine))
            assert found == pytest.approx(least, rel=1e-9), seed
            checked += 1
    assert checked > 4
