"""Pictures of blocking plans: every buffer, every level, every layer is in them."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from memplan.blocking.cost.evaluation import Evaluation, Placed
from memplan.blocking.cost.placement import Share
from memplan.blocking.nest.counts import Buffer
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.blocked import (
    MAX_LAYERS,
    blocked,
    drawn_of,
    level_colours,
    levels_of,
)

UNROLL = {"C": 16, "K": 16}
LAYER = Layer("conv", 28, 1, 32, 512)
NEST = nest_of(LAYER, [("X", 4), ("C", 32), ("X", 28), ("K", 512)], UNROLL)
DATAPATH = "datapath: C16,K16 at once"


def planned(
    name: str,
    parts: dict[str, dict[str, float]],
    compulsory: float,
    buffers: tuple[Placed, ...] = (),
    nest: Nest = NEST,
    count: int = 1,
) -> PlannedLayer:
    """parts, compulsory: pJ per MAC."""
    layer = dataclasses.replace(nest.layer, name=name)
    levels = dict.fromkeys(level for own in parts.values() for level in own)
    shares = tuple(
        Share(level, Tensor(tensor), 1, own[level] * layer.macs)
        for level in levels
        for tensor, own in parts.items()
        if level in own
    )
    found = Evaluation(layer, nest, buffers, shares, compulsory * layer.macs, 0)
    return PlannedLayer(found, Search("whole", 0.0, None, False), count)


def placed(name: str, level: str, begin: int, end: int, nbytes: int) -> Placed:
    tensor = {"I": Tensor.INPUT, "K": Tensor.KERNEL, "O": Tensor.OUTPUT}[name[0]]
    return Placed(name, tensor, level, Buffer(begin, end, nbytes // 2, 0, 0, 0, 0))


BUFFERS = (
    placed("IB0", "L2", 3, 4, 2048),
    placed("KB0", "L1", 0, 1, 512),
    placed("KB1", "DRAM", 2, 3, 1 << 21),
    placed("OB0", "L1", 1, 2, 64),
)
PARTS = {
    "input": {"L1": 0.25, "L2": 0.125, "DRAM": 0.5},
    "kernel": {"L1": 1.0, "L2": 0.0, "DRAM": 0.25},
    "output": {"L1": 0.5, "DRAM": 1.0},
}
CONV = planned("conv", PARTS, 0.75, BUFFERS)
DENSE = planned("dense", {"input": {"L1": 1.0, "DRAM": 319.0}}, 319.0)
CURVE = tuple(
    CurvePoint(1 << k, 1 << k, 2.0 ** (k - 16), LAYER.macs * 20.0 / k)
    for k in range(15, 21)
)


def drawn(
    layers: list[PlannedLayer], title: str, curve: tuple[CurvePoint, ...] = ()
) -> Figure:
    return blocked(BlockingPlan(tuple(layers), curve=curve), title, [], DATAPATH)


def named(name: str, count: int = 1) -> PlannedLayer:
    return planned(name, PARTS, 0.75, BUFFERS, count=count)


def bars(axes: Axes) -> list[tuple[str, float, float, float]]:
    """Of every piece of a bar: what it is, where it stands, its bottom and height."""
    return [
        (str(one.get_gid()), one.get_x(), one.get_y(), one.get_height())  # type: ignore[attr-defined]
        for one in axes.patches
        if one.get_gid()
    ]


def words(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    texts = [*figure.texts, *legend.get_texts()]
    for axes in figure.axes:
        texts += axes.texts
        texts += [*axes.get_xticklabels(), *axes.get_xticklabels(minor=True)]
    return [text.get_text() for text in texts]


def test_bars_are_stacked_by_level_for_each_tensor_and_all() -> None:
    figure = drawn([CONV], "conv")
    axes, _ = figure.axes
    found = bars(axes)
    stacks = sorted({x for gid, x, _, _ in found if gid.startswith("level")})
    assert len(stacks) == 4
    first = [(g, y, h) for g, x, y, h in found if x == stacks[0]]
    assert first == [
        ("level L1", 0.0, 0.25),
        ("level L2", 0.25, 0.125),
        ("level DRAM", 0.375, 0.5),
    ]
    last = {g: (y, h) for g, x, y, h in found if x == stacks[3]}
    assert last["level L1"] == (0.0, 1.75)
    assert last["level DRAM"] == (1.875, 1.75)
    assert last["compulsory"] == (2.875, 0.75)
    said = words(figure)
    assert {"input", "kernel", "output", "all", "3.62", "L1", "DRAM"} <= set(said)
    assert "compulsory: each element once" in said
    assert "the MAC itself, 1 pJ" in said
    assert axes.get_ylabel() == "pJ per MAC"


def test_layers_that_differ_much_are_drawn_as_parts() -> None:
    figure = drawn([CONV, DENSE], "two")
    (axes,) = figure.axes
    assert axes.get_ylabel().startswith("part of the energy")
    totals = [y + h for g, _, y, h in bars(axes) if g == "compulsory"]
    assert totals == pytest.approx([1.0, 1.0])
    assert {"conv", "dense", "I", "K", "O", "320"} <= set(words(figure))
    (axes,) = drawn([CONV, named("again")], "two").axes
    assert axes.get_ylabel() == "pJ per MAC"


def test_of_many_layers_those_with_most_energy_are_drawn() -> None:
    layers = [named(f"layer number {i}", i + 1) for i in range(77)]
    shown = drawn_of(layers)
    assert [one.count for one in shown] == list(range(18, 78))
    figure = drawn(layers, "many")
    assert f"drawn: the {MAX_LAYERS} that take most" in words(figure)[1]
    names = [text for text in words(figure) if text.startswith("layer number")]
    assert len(names) == MAX_LAYERS
    assert drawn_of(layers[:MAX_LAYERS]) == layers[:MAX_LAYERS]
    equal = [CONV] * 80
    assert len(drawn_of(equal)) == MAX_LAYERS


def test_every_loop_and_every_buffer_is_in_the_nest() -> None:
    figure = drawn([CONV], "conv")
    left, right = figure.axes
    assert left.get_position().x1 < right.get_position().x0
    said = [text.get_text() for text in right.texts]
    for text in (
        *("X to 4", "C to 32 by 16", "X to 28 by 4", "K to 512 by 16"),
        *("× 4", "× 2", "× 7", "× 32", "input", "kernel", "output"),
        *("IB0  2.0 KiB", "KB0  512 B", "KB1  2.0 MiB", "OB0  64 B"),
        "datapath: C16,K16 at once",
    ):
        assert text in said
    colours = level_colours(["L1", "L2", "DRAM"])
    boxes = {p.get_gid(): p for p in right.patches if p.get_gid()}
    for one in BUFFERS:
        box = boxes[f"buffer {one.name}"]
        assert to_hex(box.get_facecolor()) == colours[one.level]
        extent = box.get_extents().transformed(right.transData.inverted())
        assert one.buffer.begin < extent.y0 < extent.y1 < one.buffer.end


def test_the_curve_is_drawn_by_bytes_and_by_area() -> None:
    figure = drawn([CONV], "conv", CURVE)
    _, _, by_bytes, by_area = figure.axes
    assert by_bytes.get_xlabel() == "budget for memories"
    assert by_bytes.lines[0].get_xdata().tolist() == [2**k for k in range(15, 21)]
    assert by_area.lines[0].get_xdata().tolist() == [2.0**k for k in range(-1, 5)]
    for axes in (by_bytes, by_area):
        energies = axes.lines[0].get_ydata().tolist()
        assert energies == pytest.approx([20.0 / k for k in range(15, 21)])
    labels = [text.get_text() for text in by_bytes.get_xticklabels()]
    assert labels == ["32 KiB", "64 KiB", "128 KiB", "256 KiB", "512 KiB", "1 MiB"]


def test_colours_go_from_the_innermost_level_to_main_memory() -> None:
    assert level_colours(["L1", "L2", "L3", "L4", "DRAM"]) == dict(
        zip(
            ["L1", "L2", "L3", "L4", "DRAM"],
            [*style.SHORT_TO_LONG, style.WRAPPED],
            strict=True,
        )
    )
    assert len(set(level_colours([str(i) for i in range(9)]).values())) == 9
    assert list(level_colours(["DRAM"])) == ["DRAM"]
    deep = planned("d", {"input": dict.fromkeys(("B0", "B1", "B2", "DRAM"), 1.0)}, 0)
    flat = planned("f", {"input": {"B0": 1.0, "DRAM": 1.0}}, 0)
    assert levels_of([flat, deep]) == ["B0", "B1", "B2", "DRAM"]


def test_without_layers_there_is_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="there are no layers"):
        drawn([], "none")
