"""Padded dimensions in slices, with what reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.region import NotLoopableError, Region  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from tests.chunking.looped import Looped, looped  # noqa: E402

pytestmark = pytest.mark.torch


class Padded(nn.Module):
    """A pooling of what is padded by hand."""

    def __init__(self, pads: tuple[int, int], kernel: int, stride: int) -> None:
        super().__init__()
        self.pads, self.options = (1, 0, *pads), (kernel, stride)

    def forward(self, x: Any) -> Any:
        padded = nn.functional.pad(x.sin(), self.pads, value=0.5)
        return nn.functional.max_pool2d(padded, *self.options)


def rows_of(model: Padded, x: Any, step: int) -> Looped:
    """A loop over the rows of the pooling."""
    size = model(x).shape[2]
    kernel, stride = model.options
    front = model.pads[2]
    read = Slice(2, stride, 0, kernel - stride)
    slices = {
        "sin": read._replace(before=front, after=kernel - stride - front),
        "pad": read,
        "max_pool2d": Slice(2),
    }
    return looped(model, x, Region(slices, size, min(step, size)))


@settings(deadline=None, max_examples=40)
@given(
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    step=st.integers(1, 4),
)
def test_slices_of_what_is_padded(
    pads: tuple[int, int], kernel: int, stride: int, step: int
) -> None:
    model, x = Padded(pads, kernel, stride), torch.randn(1, 2, 11, 5)
    # A slice of one row's windows, of padding alone, has no operand.
    alone = max(pads[0] - kernel, pads[1] - stride) >= 0
    try:
        made = rows_of(model, x, step)
    except NotLoopableError:
        assert alone
        return
    assert not alone
    with torch.no_grad():
        assert torch.equal(made.found[0], model(x))
    assert made.estimated == made.measured


@pytest.mark.parametrize("options", [{"mode": "reflect"}, {"mode": "replicate"}])
def test_other_pads_stay_whole(options: dict[str, Any]) -> None:
    class Other(Padded):
        def forward(self, x: Any) -> Any:
            padded = nn.functional.pad(x.sin(), self.pads, **options)
            return nn.functional.max_pool2d(padded, *self.options)

    with pytest.raises(NotLoopableError):
        rows_of(Other((1, 1), 3, 1), torch.randn(1, 2, 11, 5), 2)
