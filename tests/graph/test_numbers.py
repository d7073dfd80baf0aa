"""Models whose code reads integer buffers, which a change of them must be seen in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from tests.compiling.modules import compiled  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.torch


class Padded(nn.Module):  # type: ignore[misc]
    """Pads by a buffer, by a computed number, and by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3)
        self.register_buffer("pad", torch.tensor(2), persistent=False)
        self.register_buffer("stride", torch.tensor([4], dtype=torch.int32))
        self.twice = torch.tensor(True)
        self.register_buffer("unused", torch.tensor(7))

    def forward(self, x: Any) -> Any:
        n = int(self.pad)
        left = int(torch.ceil((x.shape[-1] + self.pad) / self.stride)) % 3
        x = nn.functional.pad(x, (left, n, n, 0)) if n else x
        y = torch.relu(self.conv(x)) * self.pad
        y = y + torch.sin(torch.cos(y))  # memory that compile saves
        return y * 2 if self.twice else y


X = (torch.randn(1, 4, 32, 34), torch.randn(1, 4, 32, 34))


def chunked(model: Any, x: Any) -> Any:
    options = memplan.ChunkOptions(max_slowdown=None)
    module = memplan.chunk(model, (x,), "80%", options=options)
    assert "" in module.chunks
    return module


def fused(model: Any, x: Any) -> Any:
    module = memplan.fuse(model, memplan.FuseOptions(measure=False))
    module(x)
    assert hasattr(module.programs()[0], "runner")
    return module


CHANGES: dict[str, Callable[[Padded], object]] = {
    "in place": lambda model: model.pad.add_(1),
    "through data": lambda model: model.pad.data.zero_(),
    "another tensor": lambda model: setattr(model, "pad", torch.tensor(1)),
    "of one dimension": lambda model: model.stride.fill_(5),
    "an attribute": lambda model: model.twice.fill_(False),
    "to a fraction": lambda model: setattr(model, "stride", torch.tensor([2.2])),
    "on load": lambda model: model.load_state_dict(
        {**model.state_dict(), "stride": torch.tensor([9], dtype=torch.int32)}
    ),
}


@pytest.mark.parametrize("verb", [compiled, chunked, fused])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_number_is_seen(verb: Any, change: str) -> None:
    model = Padded().eval()
    with torch.no_grad():
        module = verb(model, X[0])
        for x in X:
            assert torch.allclose(module(x), model(x), atol=1e-5)
        before = model(X[0])
        CHANGES[change](model)
        after = model(X[0])
        assert before.shape != after.shape or not torch.allclose(before, after)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for x in X:
                assert torch.allclose(module(x), model(x), atol=1e-5)


def test_the_warning_names_the_number() -> None:
    model = Padded().eval()
    with torch.no_grad():
        module = compiled(model, X[0])
        model.pad.add_(1)
        with pytest.warns(UserWarning, match="pad has another value than when"):
            module(X[0])
        model.pad.sub_(1)
        assert module.runner.outdated() == ""


class Counting(Padded):
    def forward(self, x: Any) -> Any:
        self.pad += 1
        return super().forward(x)


def test_a_number_that_the_model_changes_is_not_read() -> None:
    model = Counting().eval()
    module = memplan.compile(model, (X[0],))
    assert module.memplan.status == "unchanged"
    assert int(model.pad) == 2


class OfData(Padded):
    def forward(self, x: Any) -> Any:
        return super().forward(x[..., int(x.sum() > 0) :])


def test_numbers_of_the_inputs_are_not_read() -> None:
    module = memplan.compile(OfData().eval(), (X[0],))
    assert "data-dependent" in module.memplan.reason
