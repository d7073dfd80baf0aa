"""The paper's Figure 10, drawn from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.save import check_target, save

_BOX = (0.085, 0.11, 0.735, 0.735)
_OTHERS = "#8f8f89"
# Contender, what it is called in the picture, colour, dashes (None: a whole line).
LINES: tuple[tuple[str, str, str, tuple[int, ...] | None], ...] = (
    ("eager", "eager", style.INK, None),
    ("channels_last", "eager, channels last", style.MUTED, (6, 2)),
    ("compile", "torch.compile, its best", style.BOUND, None),
    ("openvino", "OpenVINO", _OTHERS, (2, 2)),
    ("onnxruntime", "ONNX Runtime", _OTHERS, None),
    ("memplan:1", "memplan, one step", style.SHORT_TO_LONG[0], None),
    ("memplan:5", "memplan, five steps", style.SHORT_TO_LONG[1], None),
    ("memplan", "memplan, unrestricted", style.SHORT_TO_LONG[3], None),
)


def check(path: Path) -> None:
    """Raise UsageError for a suffix that no picture has; an old one is replaced."""
    check_target(path, force=True)


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the figure of records of stacks. Raises InputError without any."""
    save(figure(records), path, force=True)


def figure(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds over the number of blocks, a line for each contender, on a
    logarithmic scale as in the paper. All records are of one batch and threads."""
    stacks = sorted(
        (int(one["network"].partition(":")[2]), one["seconds"])
        for one in records
        if one["network"].startswith("stack:")
    )
    if not stacks:
        raise InputError("there are no records of stacks to draw; run --stack")
    with style.settled():
        picture = Figure(figsize=(10, 5.2), facecolor="white")
        axes = style.bare_axes(picture, _BOX)
        ends = []
        for name, label, colour, dashes in LINES:
            points = [(n, 1e3 * s[name]) for n, s in stacks if name in s]
            if points:
                xs, ys = zip(*points, strict=True)
                shape = "-" if dashes is None else (0, dashes)
                axes.plot(xs, ys, color=colour, linestyle=shape, linewidth=1.8)
                if len(points) == 1:
                    axes.plot(xs, ys, color=colour, marker="o", markersize=4)
                ends.append((xs[-1], ys[-1], label, colour))
        axes.set_yscale("log")
        _label_ends(axes, ends)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.grid(axis="y", color="#e4e4e0", linewidth=0.8)
        axes.set_xlabel("blocks", fontsize=10, color=style.INK)
        axes.set_ylabel("milliseconds", fontsize=10, color=style.INK)
        batch, threads = records[0]["batch"], records[0]["threads"]
        style.set_title(
            picture,
            _BOX[0],
            "Stacks of max-pooling, batch normalisation and ReLU",
            f"{batch} x 64 x 56 x 56, threads: {threads}; medians of rounds in turn",
        )
    return picture


def _label_ends(axes: Axes, ends: list[tuple[int, float, str, str]]) -> None:
    """Names at the lines' ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    room = (high / low) ** (1 / 20)  # of one name's height, of the axis's
    lowest = 0.0
    for x, y, label, colour in sorted(ends, key=lambda end: end[1]):
        lowest = max(y, lowest * room)
        axes.annotate(
            label,
            (x, lowest),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
        )
