"""What runs on a GPU, with torch's operators in the place of Triton's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from memplan.compiling import on_gpu  # noqa: E402
from memplan.compiling.on_gpu import OnGPU, prepare_on_gpu  # noqa: E402
from memplan.compiling.report import Fallback  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.fusing.collapse import Stack  # noqa: E402
from memplan.fusing.operators import Operation  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.fusing.reference import reference  # noqa: E402
from memplan.graph.call import Inputs  # noqa: E402

FORCED = FuseOptions(measure=False)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        z = torch.relu(self.norm(y) + y)
        z = torch.cat([nn.functional.max_pool2d(z, 2), y[:, :, ::2, ::2]], 1)
        return {"z": z, "y": self.head(z[:, :8].mean((2, 3)))}


def network() -> tuple[Any, Inputs]:
    torch.manual_seed(0)
    model = Network().eval()
    model.norm.running_mean.uniform_(-0.5, 0.5)
    model.norm.running_var.uniform_(0.5, 1.5)
    return model, Inputs((torch.randn(2, 3, 8, 8),), {})


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def stack(operations: Sequence[Operation]) -> Any:
        return partial(reference, Stack(tuple(operations)))

    monkeypatch.setattr(on_gpu, "TritonStack", stack)


def same(made: OnGPU, model: Any, inputs: Inputs) -> None:
    with torch.no_grad():
        expected, found = inputs.run(model), made.run(inputs)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


def test_it_follows_the_weights_and_sees_other_changes() -> None:
    model, inputs = network()
    with torch.no_grad():
        made = prepare_on_gpu(model, inputs, FORCED)
        assert isinstance(made, OnGPU)
        same(made, model, inputs)
        model.conv.weight.mul_(2)
        model.norm.running_mean.add_(1)
        same(made, model, inputs)
        assert not made.stale()
        model.norm.eps = 0.5
        assert made.stale()


def test_what_gains_nothing_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = network()
    monkeypatch.setattr(on_gpu, "seconds", lambda *_: [3.0, 1.0])
    with torch.no_grad():
        found = prepare_on_gpu(model, inputs, FuseOptions())
        assert isinstance(found, Fallback)
        assert "3.00 times as long" in found.reason
        bare = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
        found = prepare_on_gpu(bare, inputs, FORCED)
        assert isinstance(found, Fallback)
        assert found.reason == "it has no supported layers"


def test_results_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = network()

    def stack(operations: Sequence[Operation]) -> Any:
        return lambda x, given: 1.01 * reference(Stack(tuple(operations)), x, given)

    monkeypatch.setattr(on_gpu, "TritonStack", stack)
    with torch.no_grad(), pytest.raises(InputError, match="fused results differ"):
        prepare_on_gpu(model, inputs, FORCED)
