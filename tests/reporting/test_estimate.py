"""memplan.estimate: what steps of a model need, without its memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memplan
from memplan.errors import UsageError
from memplan.trace.trace import Category

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(40, 160), nn.GELU(), nn.Linear(160, 40))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 256, 5),
    )


class Tied(nn.Module):  # type: ignore[misc,name-defined]
    """Embeddings that are the output's weights, and a tensor that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(90, 30)
        self.output = nn.Linear(30, 90, bias=False)
        self.output.weight = self.tokens.weight
        self.scale = torch.ones(30, 30)

    def forward(self, tokens: Any, shift: float = 0.0) -> dict[str, Any]:
        return {"logits": self.output(self.tokens(tokens) @ self.scale + shift)}


MODELS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "perceptron": (perceptron, torch.zeros(64, 40), torch.optim.AdamW),
    "no gradients": (perceptron, torch.zeros(64, 40), None),
    "convolutions": (convolutions, torch.zeros(8, 32, 16, 16), torch.optim.RMSprop),
    "tied": (
        Tied,
        {"tokens": torch.zeros(6, 12, dtype=torch.long), "shift": 1.0},
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    ),
}


def really(make: Callable[[], Any], given: Any, optimizer: Any, path: Path) -> int:
    """The peak of the same steps with real tensors."""
    with memplan.record(path, device="cpu", steps="all") as recording:
        model = make()
        if isinstance(given, dict):
            given = {
                k: v.clone() if torch.is_tensor(v) else v for k, v in given.items()
            }
        else:
            given = given.clone()

        def call() -> Any:
            return model(**given) if isinstance(given, dict) else model(given)

        if optimizer is None:
            with torch.no_grad():
                for _ in range(3):
                    memplan.step()
                    call()
        else:
            chosen = optimizer(model.parameters())
            for _ in range(3):
                output = call()
                first = output["logits"] if isinstance(output, dict) else output
                first.float().mean().backward()
                del output, first
                chosen.step()
                chosen.zero_grad()
    return memplan.summarize(recording.trace).peak.bytes


@pytest.mark.parametrize("name", MODELS)
def test_an_estimate_is_what_real_steps_take(name: str, tmp_path: Path) -> None:
    make, given, optimizer = MODELS[name]
    real = really(make, given, optimizer, tmp_path / "real.parquet")
    made = memplan.estimate(make, given, optimizer=optimizer)
    assert made.live_bytes == pytest.approx(real, rel=0.01)
    assert made.reserved_bytes == 0
    model = make()
    copied = memplan.estimate(model, given, optimizer=optimizer)
    assert copied.live_bytes == made.live_bytes
    assert all(each.grad is None for each in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())


def test_a_model_larger_than_any_memory_is_estimated_on_a_gpu() -> None:
    def make() -> Any:
        return nn.Sequential(*(nn.Linear(30_000, 30_000) for _ in range(8)))

    weights = 8 * 4 * (30_000 * 30_000 + 30_000)
    train = functools.partial(torch.optim.SGD, lr=0.1)
    found = memplan.estimate(
        make, lambda: torch.zeros(2, 30_000), optimizer=train, device="h100"
    )
    assert found.capacity_bytes == 80 << 30
    assert found.live_bytes >= 2 * weights
    assert found.stats.peak.categories[Category.PARAMETERS] >= weights
    assert found.fits()
    assert not found.fits(beside="40GiB")
    assert not memplan.estimate(make, torch.zeros(2, 30_000), device="24GiB").fits(
        10 << 30
    )


def test_the_loss_is_the_outputs_own_or_the_one_given() -> None:
    class Output:
        def __init__(self, loss: Any) -> None:
            self.loss = loss

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 20)

        def forward(self, values: Any) -> Output:
            return Output(self.layer(values).sum())

    train = torch.optim.SGD
    own = memplan.estimate(Model, torch.zeros(5, 20), optimizer=train)
    given = memplan.estimate(
        Model, (torch.zeros(5, 20),), optimizer=train, loss=lambda out: out.loss
    )
    assert own.live_bytes == given.live_bytes


def test_what_cannot_be_estimated_is_refused() -> None:
    model, given = perceptron(), torch.zeros(3, 40)
    with pytest.raises(UsageError, match="the device has no size"):
        memplan.estimate(model, given).fits()
    with pytest.raises(UsageError, match="device 'abacus': name cpu"):
        memplan.estimate(model, given, device="abacus")
    with pytest.raises(UsageError, match="24 has no unit"):
        memplan.estimate(model, given, device="24")
    with pytest.raises(TypeError, match="a function that makes a module, not int"):
        memplan.estimate(lambda: 3, given)
    with pytest.raises(TypeError, match="expected a module"):
        memplan.estimate(3, given)
    with pytest.raises(TypeError, match="expected an optimizer's class or a function"):
        memplan.estimate(model, given, optimizer="adamw")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a device's name, not int"):
        memplan.estimate(model, given, device=1 << 30)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give loss"):
        memplan.estimate(
            nn.Sequential(model.requires_grad_(False)),
            given,
            optimizer=lambda _: torch.optim.SGD([nn.Parameter(torch.zeros(3))]),
        )
    assert torch.zeros(3).sum().item() == 0  # tensors are real again
