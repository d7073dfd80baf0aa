"""In whose memory a loop's results lie."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.region import Region  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from tests.chunking.looped import Looped, looped  # noqa: E402

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


def ran(model: nn.Module, slices: dict[str, Slice], step: int) -> Looped:
    """A loop over the images' rows, which computes the same and needs what is
    estimated."""
    x = torch.randn(2, 4, 6, 6)
    made, expected = looped(model, x, Region(slices, 6, step)), model(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert all(map(torch.equal, made.found, expected))
    for one, other in zip(made.found, expected, strict=True):
        assert one.stride() == other.stride()
    assert made.estimated == made.measured
    return made


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_value_that_is_read_as_other_shapes_is_written_over(step: int) -> None:
    slices = {**PLACES, "cos": Slice(2), "add": Slice(2)}
    made = ran(Places(), slices, step)
    assert [each.into for each in made.loop.outputs] == ["sin"]
    assert made.program.roots["add"] == "sin"


def test_not_where_other_places_are_read() -> None:
    slices = {"mul": Slice(2), "cos": Slice(2), "add": Slice(2)}
    made = ran(Turned(), slices, 2)
    assert [each.into for each in made.loop.outputs] == [None]


def test_not_where_it_is_read_later() -> None:
    slices = {"mul": Slice(2, 6), "view_1": Slice(2), "add": Slice(2)}
    made = ran(Later(), slices, 2)
    assert [each.into for each in made.loop.outputs] == [None]


def test_in_the_layout_of_what_is_written_over() -> None:
    slices = {"clone": Slice(1, 6), **PLACES, "add": Slice(2)}
    made = ran(Rows(), slices, 2)
    assert [each.into for each in made.loop.outputs] == ["sin"]
    assert made.program.metas["add"] == made.program.metas["sin"]


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
    made = ran(Returned(last), slices, 2)
    assert [each.into for each in made.loop.outputs] == [None]
    assert made.program.metas["add"].strides != made.program.metas["sin"].strides


class Halves(nn.Module):
    """Read as a smaller type, a part of a value has as many elements as all of it."""

    def forward(self, x: Any) -> Any:
        x = x.sin()
        part = x.flatten()[: x.numel() // 2].view(torch.float16).view(x.shape)
        return x + part.nan_to_num(0.0, 0.0, 0.0)


def test_not_where_a_part_is_read_as_another_type() -> None:
    slices = {"nan_to_num": Slice(0), "add": Slice(0)}
    x = torch.randn(6, 4, 4)
    made = looped(Halves(), x, Region(slices, 6, 2))
    assert [each.into for each in made.loop.outputs] == [None]
    assert torch.equal(made.found[0], Halves()(x))
