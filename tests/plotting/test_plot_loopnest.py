"""Pictures of blocking plans: every buffer, every level, every layer is in them."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.blocked import (
    MAX_LAYERS,
    AreaPoint,
    DrawnBuffer,
    EnergyBars,
    LoopNest,
    blocked,
    drawn_of,
    level_colours,
    levels_of,
)

CONV = EnergyBars(
    "conv",
    {
        "input": {"L1": 0.25, "L2": 0.125, "DRAM": 0.5},
        "kernel": {"L1": 1.0, "L2": 0.0, "DRAM": 0.25},
        "output": {"L1": 0.5, "DRAM": 1.0},
    },
    compulsory=0.75,
    mac_pj=1.0,
    total_pj=3.625e6,
)
DENSE = EnergyBars(
    "dense", {"input": {"L1": 1.0, "DRAM": 319.0}}, 319.0, mac_pj=1.0, total_pj=1e6
)
NEST = LoopNest(
    [("X", 1, 4), ("C", 16, 32), ("X", 4, 28), ("K", 16, 512)],
    ["input", "kernel", "output"],
    [
        DrawnBuffer("IB0", "input", "L2", 3, 4, 2048),
        DrawnBuffer("KB0", "kernel", "L1", 0, 1, 512),
        DrawnBuffer("KB1", "kernel", "DRAM", 2, 3, 1 << 21),
        DrawnBuffer("OB0", "output", "L1", 1, 2, 64),
    ],
    "datapath: C16,K16 at once",
)
CURVE = [AreaPoint(1 << k, 1 << k, 2.0 ** (k - 16), 20.0 / k) for k in range(15, 21)]


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
    figure = blocked([CONV], "conv", ["a fact"])
    (axes,) = figure.axes
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
    figure = blocked([CONV, DENSE], "two", [])
    (axes,) = figure.axes
    assert axes.get_ylabel().startswith("part of the energy")
    totals = [y + h for g, _, y, h in bars(axes) if g == "compulsory"]
    assert totals == pytest.approx([1.0, 1.0])
    assert {"conv", "dense", "I", "K", "O", "320"} <= set(words(figure))
    alike = dataclasses.replace(CONV, name="again")
    (axes,) = blocked([CONV, alike], "two", []).axes
    assert axes.get_ylabel() == "pJ per MAC"


def test_of_many_layers_those_with_most_energy_are_drawn() -> None:
    layers = [
        dataclasses.replace(CONV, name=f"layer number {i}", total_pj=float(i % 77))
        for i in range(77)
    ]
    shown = drawn_of(layers)
    assert [one.total_pj for one in shown] == list(range(17, 77))
    figure = blocked(layers, "many", [])
    assert f"drawn: the {MAX_LAYERS} that take most" in words(figure)[1]
    names = [text for text in words(figure) if text.startswith("layer number")]
    assert len(names) == MAX_LAYERS
    assert drawn_of(layers[:MAX_LAYERS]) == layers[:MAX_LAYERS]
    equal = [CONV] * 80
    assert len(drawn_of(equal)) == MAX_LAYERS


@pytest.mark.parametrize("count", [2, 77])
@pytest.mark.parametrize("name", ["c", "encoder.layers.11.attention.out_proj"])
def test_names_overlap_neither_each_other_nor_the_legend(count: int, name: str) -> None:
    layers = [dataclasses.replace(CONV, name=f"{name}{i}") for i in range(count)]
    figure = blocked(layers, "many", [])
    figure.canvas.draw()
    (axes,), (legend,) = figure.axes, figure.legends
    boxes = [text.get_window_extent() for text in axes.get_xticklabels()]
    top = legend.get_window_extent().y1
    for i, box in enumerate(boxes):
        assert box.y0 >= top
        assert all(not box.overlaps(other) for other in boxes[i + 1 :])


def test_every_loop_and_every_buffer_is_in_the_nest() -> None:
    figure = blocked([CONV], "conv", [], nest=NEST)
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
    for buffer in NEST.buffers:
        box = boxes[f"buffer {buffer.name}"]
        assert to_hex(box.get_facecolor()) == colours[buffer.level]
        extent = box.get_extents().transformed(right.transData.inverted())
        assert buffer.begin < extent.y0 < extent.y1 < buffer.end


def test_a_nest_without_loops_is_drawn() -> None:
    nest = dataclasses.replace(NEST, loops=[], buffers=[])
    figure = blocked([CONV], "conv", [], nest=nest)
    assert "datapath: C16,K16 at once" in words(figure)


def test_the_curve_is_drawn_by_bytes_and_by_area() -> None:
    figure = blocked([CONV], "conv", [], curve=CURVE)
    _, by_bytes, by_area = figure.axes
    assert by_bytes.get_xlabel() == "budget for memories"
    assert by_bytes.lines[0].get_xdata().tolist() == [2**k for k in range(15, 21)]
    assert by_area.lines[0].get_xdata().tolist() == [2.0**k for k in range(-1, 5)]
    for axes in (by_bytes, by_area):
        assert axes.lines[0].get_ydata().tolist() == [p.per_mac for p in CURVE]
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
    deep = EnergyBars("d", {"input": {"B0": 1, "B1": 1, "B2": 1, "DRAM": 1}}, 0, 1, 1)
    flat = EnergyBars("f", {"input": {"B0": 1.0, "DRAM": 1.0}}, 0, 1, 1)
    assert levels_of([flat, deep]) == ["B0", "B1", "B2", "DRAM"]


def test_without_layers_there_is_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="there are no layers"):
        blocked([], "none", [])
