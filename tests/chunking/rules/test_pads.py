"""Padded dimensions in slices, with what reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import Observed, activation_peak, iterations  # noqa: E402

pytestmark = pytest.mark.torch


class Padded(nn.Module):
    """A pooling of what is padded by hand."""

    def __init__(self, pads: tuple[int, int], kernel: int, stride: int) -> None:
        super().__init__()
        self.pads, self.options = (1, 0, *pads), (kernel, stride)

    def forward(self, x: Any) -> Any:
        padded = nn.functional.pad(x.sin(), self.pads, value=0.5)
        return nn.functional.max_pool2d(padded, *self.options)


def looped(model: Any, x: Any, step: int) -> tuple[Any, int, int]:
    """What a loop over the rows gives, its estimated and its measured peak."""
    inference = Inference()
    program = lower(export(model, (x,), {}), inference)
    pool, size = program.ops[-1], program.metas["max_pool2d"].shape[2]
    kernel, stride = model.options
    assert pool.name == "max_pool2d"
    front = model.pads[2]
    read = Slice(2, stride, 0, kernel - stride)
    slices = {
        "sin": read._replace(before=front, after=kernel - stride - front),
        "pad": read,
        "max_pool2d": Slice(2),
    }
    loops = chunked(program, Region(slices, size, min(step, size)), inference)
    run = compiled(source(loops, "rows"), "rows")
    with torch.no_grad():
        (found,) = run([x], {})
        measured = activation_peak(lambda: run([x], {}))
    seen = Observed().temporaries
    return found, profile(loops, False, seen, bodies=iterations).peak, measured


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
        found, estimated, measured = looped(model, x, step)
    except NotLoopableError:
        assert alone
        return
    assert not alone
    with torch.no_grad():
        assert torch.equal(found, model(x))
    assert estimated == measured


@pytest.mark.parametrize("options", [{"mode": "reflect"}, {"mode": "replicate"}])
def test_other_pads_stay_whole(options: dict[str, Any]) -> None:
    class Other(Padded):
        def forward(self, x: Any) -> Any:
            padded = nn.functional.pad(x.sin(), self.pads, **options)
            return nn.functional.max_pool2d(padded, *self.options)

    with pytest.raises(NotLoopableError):
        looped(Other((1, 1), 3, 1), torch.randn(1, 2, 11, 5), 2)
