"""Counts against a machine that executes the loops, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_strategies import nests
from nest_trace import Memory, MissError, Row, trace

from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import INDEXED_BY, Layer, Tensor
from memplan.blocking.nest.nest import Loop, Nest, parse_nest
from tests.blocking.nest_cases import every_case

AXES = (("X", "Fw"), ("Y", "Fh"))
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(number: int) -> settings:
    return settings(max_examples=number, deadline=None, suppress_health_check=SLOW)


def modelled(traffic: Traffic) -> list[Row]:
    """The model's counts as `trace` has them, main memory's last."""
    inner = [
        Row(b.elements, b.reads, b.writes, b.fills, b.drains) for b in traffic.buffers
    ]
    first = traffic.alpha if traffic.tensor is Tensor.OUTPUT else 0
    written = (traffic.main + first) // 2 if first else 0
    return [*inner, Row(0, traffic.main - written, written, 0, 0)]


def may_stay(nest: Nest, loops: list[Loop], dim: str) -> bool:
    """Whether these loops along `dim` have a single trip each in one of its tiles."""
    own = [loop for loop in loops if loop.dim == dim]
    return min(nest.tiles(dim, own[-1].outer)) <= own[0].inner


def returns(nest: Nest, end: int, turned: list[Loop], loop: Loop) -> bool:
    """Whether `loop` moves an input's tile on by as much as those along the same axis
    that start anew move it back. Where edges make steps differ, it may always be."""
    if any(each.outer % each.inner for each in nest.loops):
        return True
    tile, (image, window) = nest.extents(end), AXES[loop.dim in AXES[1]]
    step = {image: nest.layer.stride[image == "Y"], window: 1}
    other = window if loop.dim == image else image
    reach = max(turn.outer for turn in turned if turn.dim == other)
    return tile[loop.dim] * step[loop.dim] == (reach - tile[other]) * step[other]


def may_coincide(nest: Nest, tensor: Tensor, end: int) -> bool:
    """Whether a buffer whose run ends at loop `end` may be visited with the same tile
    twice in a row: the model fetches it twice then, and the machine once.

    From one visit to the next some loop advances, and those between it and the run
    start anew. If it does not walk over the tensor, the tile stays where those inside
    have a single trip each, as in an edge tile. If it does, the tile stays only where
    image and window move by as much in opposite directions, and nothing else does.
    """
    turned: list[Loop] = []
    for loop in nest.loops[end:]:
        walks = loop.dim in INDEXED_BY[tensor]
        axes = [axis for axis in AXES if walks and loop.dim in axis]
        axis = set(axes[0]) if axes and tensor is Tensor.INPUT else set()
        dims = {turn.dim for turn in turned}
        opposite = dims & axis - {loop.dim}
        still = all(may_stay(nest, turned, dim) for dim in dims - axis)
        if still and (not walks or (opposite and returns(nest, end, turned, loop))):
            return True
        turned += [loop] if walks else []
    return False


def compare(nest: Nest) -> Iterator[tuple[Tensor, bool, bool]]:
    """Of every buffer: its tensor, whether tiles may coincide, and whether any did.

    Sizes and demand must be equal, nothing may be counted too little, and nothing too
    much without an explanation.
    """
    measured = trace(nest)
    for tensor, own in count(nest).items():
        model, real = modelled(own), measured[tensor]
        assert real[0].reads + real[0].writes == own.demand
        assert model[0].reads == real[0].reads
        for i, buffer in enumerate(own.buffers):
            assert model[i].elements == real[i].elements
            for row in (model, real):  # what leaves one is what the next one serves
                assert row[i][3:] == row[i + 1][1:3]
            excess = model[i].fills - real[i].fills
            assert excess >= 0
            assert model[i].drains - real[i].drains == excess * bool(real[i].drains)
            may = may_coincide(nest, tensor, buffer.end)
            assert may or not excess
            yield tensor, may, excess > 0


def check(nest: Nest, innermost: bool, divisors: bool) -> None:
    """innermost: windows are whole; divisors: there are no edges. With both every count
    is the machine's; otherwise tiles that may coincide do, apart from an input's where
    windows move and there are edges."""
    for tensor, may, did in compare(nest):
        if innermost or divisors or tensor is not Tensor.INPUT:
            assert may == did
        if divisors:  # without an edge only an input's tiles may coincide
            assert not may or (tensor is Tensor.INPUT and not innermost)


EACH = pytest.mark.parametrize(
    ("innermost", "divisors"),
    [(True, True), (False, True), (True, False), (False, False)],
)


@EACH
@given(st.data())
@examples(40)
def test_counts_are_those_of_the_machine(
    innermost: bool, divisors: bool, data: st.DataObject
) -> None:
    drawn = nests(window_innermost=innermost, divisors=divisors)
    check(data.draw(drawn), innermost, divisors)


@pytest.mark.soak
@EACH
def test_counts_of_many_strings(innermost: bool, divisors: bool) -> None:
    drawn = nests(window_innermost=innermost, divisors=divisors, macs=1000)
    examples(5000)(given(drawn)(lambda nest: check(nest, innermost, divisors)))()


def test_the_machine_refuses_what_its_buffers_do_not_hold() -> None:
    main = Memory(None, written=False)
    main.tile, main.held = frozenset({0, 1, 2}), {0: 5, 1: 6, 2: 7}
    buffer = Memory(main, written=False)
    buffer.visit(frozenset({0, 1}))
    assert buffer.read(frozenset({1})) == {1: 6}
    with pytest.raises(MissError, match=r"\[2\] are not in the tile"):
        buffer.read(frozenset({1, 2}))


@every_case(having="brute_force")
def test_counts_of_the_cases_are_those_of_the_machine(case: dict[str, Any]) -> None:
    sizes = {d: case["layer"][d] for d in ("X", "Y", "C", "K", "Fw", "Fh")}
    layer = Layer(case["layer"]["name"], **sizes)
    measured = trace(parse_nest(case["string"], layer, case["unroll"]))
    for tensor, rows in measured.items():
        assert [row._asdict() for row in rows] == case["brute_force"][tensor.value]
