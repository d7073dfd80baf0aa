"""In whose memory a loop's results lie."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import Observed, activation_peak, iterations  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402

pytestmark = pytest.mark.torch


class Places(nn.Module):
    """What attention over an image does: places as rows, and the image added."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        rows = x.flatten(2).transpose(1, 2) * 2
        return x + rows.transpose(1, 2).reshape(x.shape).cos()


class Rows(Places):
    """The result of the attention is rows of channels in memory."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        rows = x.flatten(2).transpose(1, 2).contiguous() * 2
        return (rows.transpose(1, 2).reshape(x.shape) + x).exp().cos().sum(1)


class Turned(nn.Module):
    """The added image lies on its side."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        return x + (x.transpose(2, 3) * 2).cos()


class Later(nn.Module):
    """The rows are read again after the result is made."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        rows = x.flatten(2)
        first = x + (rows * 2).reshape(x.shape)
        return first, rows.exp()


PLACES = {"mul": Slice(1, 6), "transpose_1": Slice(2, 6), "view_1": Slice(2)}


def ran(model: nn.Module, slices: dict[str, Slice], step: int) -> tuple[Program, Loop]:
    """The program with a loop over the images' rows, which computes the same and needs
    what is estimated."""
    inference, x = Inference(), torch.randn(2, 4, 6, 6)
    program = lower(export(model, (x,), {}), inference)
    loops = chunked(program, Region(slices, 6, step), inference)
    run = compiled(source(loops, "buffers"), "buffers")
    expected = model(x)
    found = run([x], {})
    for one, other in zip(
        found, torch.utils._pytree.tree_leaves(expected), strict=True
    ):
        assert torch.equal(one, other)
    del found, expected
    seen = Observed().temporaries
    estimated = profile(loops, True, seen, bodies=iterations).peak
    assert estimated == activation_peak(lambda: run([x], {}))
    (loop,) = (each for each in loops.ops if isinstance(each, Loop))
    return loops, loop


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_value_that_is_read_as_other_shapes_is_written_over(step: int) -> None:
    slices = {**PLACES, "cos": Slice(2), "add": Slice(2)}
    program, loop = ran(Places(), slices, step)
    assert [each.into for each in loop.outputs] == ["sin"]
    assert program.roots["add"] == "sin"


def test_not_where_other_places_are_read() -> None:
    slices = {"mul": Slice(2), "cos": Slice(2), "add": Slice(2)}
    _, loop = ran(Turned(), slices, 2)
    assert [each.into for each in loop.outputs] == [None]


def test_not_where_it_is_read_later() -> None:
    slices = {"mul": Slice(2, 6), "view_1": Slice(2), "add": Slice(2)}
    _, loop = ran(Later(), slices, 2)
    assert [each.into for each in loop.outputs] == [None]


def test_in_the_layout_of_what_is_written_over() -> None:
    slices = {"clone": Slice(1, 6), **PLACES, "add": Slice(2)}
    program, loop = ran(Rows(), slices, 2)
    assert [each.into for each in loop.outputs] == ["sin"]
    assert program.metas["add"] == program.metas["sin"]


class Returned(Rows):
    """What follows shows the layout: it is returned, or memory is read without regard
    to shapes."""

    def __init__(self, last: Any) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Any) -> Any:
        x = x.sin()
        rows = x.flatten(2).transpose(1, 2).contiguous() * 2
        return self.last(rows.transpose(1, 2).reshape(x.shape) + x)


def strided(x: Any) -> Any:
    return torch.as_strided(x.exp(), (2, 4, 6, 6), (144, 36, 6, 1)).cos().sum(1)


@pytest.mark.parametrize(
    "last",
    [
        lambda x: x,
        torch.exp,
        lambda x: x.exp().permute(0, 2, 3, 1).contiguous(),
        strided,
    ],
)
def test_layouts_that_are_seen_stay(last: Any) -> None:
    slices = {"clone": Slice(1, 6), **PLACES, "add": Slice(2)}
    model, x = Returned(last), torch.randn(2, 4, 6, 6)
    program, loop = ran(model, slices, 2)
    assert [each.into for each in loop.outputs] == [None]
    assert program.metas["add"].strides != program.metas["sin"].strides
    (found,) = compiled(source(program, "buffers"), "buffers")([x], {})
    assert found.stride() == model(x).stride()


class Halves(nn.Module):
    """Read as a smaller type, a part of a value has as many elements as all of it."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        part = x.flatten()[: x.numel() // 2].view(torch.float16).view(x.shape)
        return x + part.nan_to_num(0.0, 0.0, 0.0)


def test_not_where_a_part_is_read_as_another_type() -> None:
    slices = {"nan_to_num": Slice(0), "add": Slice(0)}
    inference, x = Inference(), torch.randn(6, 4, 4)
    program = lower(export(Halves(), (x,), {}), inference)
    loops = chunked(program, Region(slices, 6, 2), inference)
    assert [each.into for each in loops.ops[-1].outputs] == [None]
    (found,) = compiled(source(loops, "buffers"), "buffers")([x], {})
    assert torch.equal(found, Halves()(x))
