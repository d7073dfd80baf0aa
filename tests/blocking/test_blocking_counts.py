"""Counts worked out by hand, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from nest_strategies import nests, traffic_of
from nest_trace import trace

from memplan.blocking.cost.paper import count_as_paper
from memplan.blocking.nest.counts import Buffer, Traffic, count, runs
from memplan.blocking.nest.layer import Layer, Tensor, elements, pooling
from memplan.blocking.nest.nest import Nest, parse_nest

INPUT, KERNEL, OUTPUT = Tensor


def of(text: str, tensor: Tensor, **sizes: int) -> Traffic:
    layer = Layer("small", **{"X": 1, "Y": 1, "C": 1, "K": 1, **sizes})
    return count(parse_nest(text, layer))[tensor]


T2 = {"X": 8, "Y": 8, "C": 4, "K": 8, "Fw": 3, "Fh": 3}
T4 = {"X": 8, "Y": 8, "C": 4, "K": 8}


def test_each_level_fetches_its_own_halo() -> None:
    own = of("Fw3 Fh3 X4 Y4 C2 K4 X8 Y8 C4 K8", INPUT, **T2)
    assert [(b.elements, b.reads, b.fills) for b in own.used] == [
        (72, 18432, 1152),
        (400, 1152, 400),
    ]
    assert own.main == own.compulsory == 400


def test_partial_sums_are_read_once_less_than_they_are_written() -> None:
    own = of("X2 Y2 C2 K4 X8 Y8 C4 K8", OUTPUT, **T4)
    assert [(b.reads, b.writes, b.fills, b.drains) for b in own.buffers] == [
        (1536, 2048, 512, 1024),
        (512, 1024, 0, 512),
    ]
    assert own.demand == 1536 + 2048
    assert own.main == own.compulsory == 512


@pytest.mark.parametrize(
    ("text", "size", "fills"), [("X8 Fw3", 10, 10), ("X4 Fw3 X8", 6, 12)]
)
def test_a_sliding_window_uses_an_input_less_than_its_width(
    text: str, size: int, fills: int
) -> None:
    (buffer,) = of(text, INPUT, X=8, Fw=3).buffers
    assert buffer == Buffer(buffer.begin, buffer.end, size, 24, 0, fills, 0)


def test_pooling_has_no_kernel() -> None:
    layer = pooling("pool", 4, 4, 8, (2, 2), 2)
    traffic = count(parse_nest("Fw2 Fh2 X4 Y4 G8", layer))
    assert list(traffic) == [INPUT, OUTPUT]
    assert traffic[INPUT].main == 8 * 8 * 8
    assert traffic[OUTPUT].main == 4 * 4 * 8


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


def test_edge_tiles_that_coincide_are_counted_for_each() -> None:
    # The last tile of C is one channel, which both halves of X use; C2 is one trip.
    nest = parse_nest("X2 C2 X4 C3", Layer("edge", 4, 1, 3, 1))
    assert count(nest)[KERNEL].buffers[0].fills == 6
    assert trace(nest)[KERNEL][0].fills == 5


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
