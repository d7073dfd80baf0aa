"""What enlarging pictures needs beside its operand and result, as torch does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from memplan.graph.workspace import temporaries  # noqa: E402

pytestmark = pytest.mark.torch
MODES = ("nearest", "nearest-exact", "bilinear")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", [16, 32, 70])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "from rows"])
def test_as_measured(mode: str, side: int, batch: int, layout: str) -> None:
    x = torch.randn(batch, 6, side, side)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "from rows":  # strides over one picture that are not the usual ones
        rows = torch.randn(batch, side * side, 6)
        x = rows.permute(0, 2, 1).reshape(batch, 6, side, side)
    model = torch.nn.Upsample(scale_factor=2, mode=mode).eval()
    program = lower(export(model, (x,), {}), Inference())
    estimated = temporaries(program, program.ops[-1])
    out = model(x)
    measured = activation_peak(lambda: model(x)) - out.nbytes
    assert measured <= estimated + 0.05 * out.nbytes  # tables of places are not counted
    if batch > 1 or layout != "channels last":
        assert estimated <= measured + 0.05 * out.nbytes
