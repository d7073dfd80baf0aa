"""What models keep, print and draw is theirs; those that are fused are as they were."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, block, noise, same  # noqa: E402
from torch import nn  # noqa: E402

from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.module import PartlyFused  # noqa: E402
from memplan.fusing.prepared import Fallback, Prepared  # noqa: E402

SEEN: list[int] = []
CACHE: dict[str, Any] = {}


class Settings:
    def __init__(self) -> None:
        self.calls = 0


class Noting(nn.Module):
    kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, note: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.body, self.note, self.lock = block(), note, threading.Lock()
        self.features: dict[str, list[Any]] = {"all": []}
        self.settings = Settings()
        self.loose = torch.zeros(1)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        self.note(self, y)
        return y + 1


def _count(m: Any, _: Any) -> None:
    m.settings.calls += 1


NOTES: dict[str, Callable[[Any, Any], Any]] = {
    "list in a dict": lambda m, y: m.features["all"].append(y),
    "global": lambda m, y: SEEN.append(len(SEEN)),
    "class": lambda m, y: m.kept.update(last=y),
    "object": _count,
    "loose tensor": lambda m, y: m.loose.add_(1),
    "print": lambda m, y: print("called"),
    "python's random": lambda m, y: random.random(),
    "numpy's random": lambda m, y: np.random.random(),
    "attribute": lambda m, y: setattr(m, "last", y),
}


def _traces(model: Any, capsys: Any) -> list[Any]:
    """What three calls leave behind."""
    SEEN.clear()
    Noting.kept.clear()
    random.seed(3)
    np.random.seed(3)
    with torch.no_grad():
        for _ in range(3):
            model(noise(2, 3, 8, 8))
    inner = getattr(model, "model", model)
    return [
        *(len(inner.features["all"]), len(SEEN), len(inner.kept)),
        *(inner.settings.calls, float(inner.loose), hasattr(inner, "last")),
        *(capsys.readouterr().out, random.random(), np.random.random()),
    ]


@pytest.mark.parametrize("kind", NOTES)
def test_what_a_call_leaves_behind(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _traces(Noting(NOTES[kind]).eval(), capsys)
    ready = fuse(Noting(NOTES[kind]).eval(), FORCED)
    with pytest.warns(UserWarning, match="model runs unchanged|model run unchanged"):
        assert _traces(ready, capsys) == expected
    made = ready.programs()[0]
    assert isinstance(made, Fallback if kind == "attribute" else PartlyFused)


def test_a_cache_by_device_stays_the_models() -> None:
    def scaled(m: Any, y: Any) -> None:
        for held in (m.features, CACHE):
            held.setdefault(str(y.device), torch.ones(1))
        y.mul_(CACHE["cpu"]).mul_(m.features["cpu"])

    CACHE.clear()
    model = Noting(scaled).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad():
        for batch in (1, 2, 3):
            x = noise(batch, 3, 8, 8)
            same(model(x), ready(x))
            assert type(CACHE["cpu"]) is type(model.features["cpu"]) is torch.Tensor
        assert all(isinstance(each, Prepared) for each in ready.programs())
        model.features["cpu"] = torch.full((1,), 2.0)  # it is seen
        same(model(x), ready(x))


def test_results_that_change_from_call_to_call() -> None:
    turns = iter(range(100))
    model = Noting(lambda m, y: y.add_(next(turns))).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="change from call to call"):
        fuse(model, FORCED)(noise(2, 3, 8, 8))


def test_a_weight_that_two_layers_share_until_they_do_not() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1)).eval()
    model[2].weight = model[0].weight
    ready, x = fuse(model, FORCED), noise(2, 3, 8, 8)
    with torch.no_grad():
        same(model(x), ready(x))
        model[2].weight = nn.Parameter(model[0].weight * 2)
        same(model(x), ready(x))
        model[0].weight.mul_(3)
        same(model(x), ready(x))


def test_arguments_of_any_nest() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = block()

        def forward(self, pair: Any, *more: Any, scale: Any = 1.0) -> Any:
            y = self.body(pair["a"]) * scale + self.body(pair["b"][0])
            return {"y": sum((self.body(each) for each in more), y)}

    model, x = Sums().eval(), noise(2, 3, 8, 8)
    ready = fuse(model, FORCED)
    with torch.no_grad():
        for scale in (1.0, 2, 0.5):
            for more in ((), (x,)):
                call = {"a": x, "b": [x + 1]}
                expected = model(call, *more, scale=scale)
                same(expected, ready(call, *more, scale=scale))
    assert all(isinstance(each, Prepared) for each in ready.programs())
