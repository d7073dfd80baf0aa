"""Fused models while the models change: weights, modules, modes, hooks, notes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_models import FORCED, Small, agree, noise, prepared, program, small  # noqa: E402
from torch import nn  # noqa: E402

from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.module import PartlyFused  # noqa: E402
from memplan.fusing.prepared import Fallback, Prepared  # noqa: E402


def _optimizer(model: Any) -> None:
    step = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(noise()).sum().backward()
    step.step()


def _swap(model: Any) -> None:
    model.conv.weight = nn.Parameter(torch.ones_like(model.conv.weight))


def _average(model: Any) -> None:
    for each in model.parameters():
        each.data.copy_(each.data * 0.5 + 0.1)


def _statistics(model: Any) -> None:
    model.train()
    model(noise() + 1)
    model.eval()


def _replace(model: Any) -> None:
    model.tail[0] = nn.Tanh()


def _functional(model: Any) -> None:
    mean, var = model.bn.running_mean, model.bn.running_var
    nn.functional.batch_norm(torch.rand(2, 4, 8, 8), mean, var, training=True)


def _stride(model: Any) -> None:
    model.conv.stride = (2, 2)


def _forward(model: Any) -> None:
    model.forward = lambda x: x[:, :1] * 3


def _scale(model: Any) -> None:
    model.scale = 3.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda m: m.conv.weight.mul_(3),
    "optimizer": _optimizer,
    "state dict": lambda m: m.load_state_dict(Small().state_dict()),
    "assigned state": lambda m: m.load_state_dict(Small().state_dict(), assign=True),
    "another parameter": _swap,
    "averaged through data": _average,
    "data exchanged": lambda m: setattr(m.bn.weight, "data", torch.full((4,), 3.0)),
    "statistics": _statistics,
    "statistics by function": _functional,
    "module replaced": _replace,
    "module gone": lambda m: m.tail.pop(2),
    "a number of a layer": _stride,
    "a number of the model": _scale,
    "forward replaced": _forward,
    "bias gone": lambda m: setattr(m.conv, "bias", None),
    "to another format": lambda m: m.to(memory_format=torch.channels_last),
    "shared memory": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changes_are_seen(kind: str) -> None:
    model = small()
    ready = prepared(model)
    with torch.no_grad():
        before = ready(noise())
        CHANGES[kind](model)
    agree(model, ready)
    if kind not in ("to another format", "shared memory"):
        after = ready(noise())
        assert after.shape != before.shape or not torch.equal(after, before)


def test_another_type_is_as_in_the_model() -> None:
    model = small()
    ready = prepared(model)
    model.to(torch.bfloat16)
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(noise())
    with torch.no_grad(), pytest.raises(RuntimeError):
        ready(noise())
    x = noise().to(torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=5e-2, atol=5e-2)


def test_weights_that_change_at_every_call_are_not_packed_at_every_call() -> None:
    model = small()
    ready = prepared(model)
    packed = []
    engine = program(ready).engine
    pack = engine.pack
    engine.pack = lambda: packed.append(1) or pack()
    with torch.no_grad():
        for _ in range(12):
            model.conv.weight.add_(0.01)
            agree(model, ready)
        assert len(packed) <= 4
        for _ in range(3):
            agree(model, ready)
    assert len(packed) <= 5
    assert program(ready).ready()


def test_modules_in_training_mode() -> None:
    model = small()
    ready = prepared(model)
    kept = copy.deepcopy(model.state_dict())
    model.bn.train()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = ready(noise())
        assert isinstance(program(ready), Fallback)
        mine = model.state_dict()
        model.load_state_dict(kept)
        torch.testing.assert_close(found, model(noise()))
        for name, value in model.state_dict().items():
            assert torch.equal(value, mine[name]), name  # updated once, not more often
    model.bn.eval()
    agree(model, ready)
    assert isinstance(program(ready), Prepared)
    ready.train()
    assert model.training
    assert model.tail.training
    assert ready(noise()).requires_grad


def test_fusing_changes_no_modes() -> None:
    model = small()
    model.train()
    model.bn.eval()
    fuse(model)
    assert model.training
    assert not model.bn.training


@pytest.mark.parametrize("where", ["", "conv", "tail", "tail.0"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_run(where: str, when: str) -> None:
    model = small()
    ready = fuse(model, FORCED)
    if when == "after":
        agree(model, ready)
    seen: list[Any] = []

    def hook(module: Any, args: Any, output: Any) -> Any:
        seen.append(module)
        return output + 1

    handle = model.get_submodule(where).register_forward_hook(hook)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ready(noise())
        assert seen == [model.get_submodule(where)]
        torch.testing.assert_close(found, model(noise()))
        handle.remove()
        agree(model, ready)
        before = model.get_submodule(where).register_forward_pre_hook(
            lambda module, args: (args[0] * 2,)
        )
        agree(model, ready)
    before.remove()
    agree(model, ready)
    assert isinstance(program(ready), Prepared)


def test_hooks_on_all_modules_and_on_the_fused_one() -> None:
    model = small()
    ready = prepared(model)
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(module)
    )
    with torch.no_grad():
        ready(noise())
    handle.remove()
    assert model.conv in seen
    ready.register_forward_hook(lambda module, args, output: output * 0)
    with torch.no_grad():
        assert not ready(noise()).any()


class Counts(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls, self.last = how, 0, None
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        if self.how == "buffer":
            self.seen += 1
        elif self.how == "number":
            self.calls += 1
        elif self.how == "kept":
            self.last = y
        elif self.calls == 0:
            self.calls = 1
        return y


@pytest.mark.parametrize("how", ["buffer", "number", "kept", "once"])
def test_what_a_model_notes_is_noted(how: str) -> None:
    model = Counts(how).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(1, 4):
            found = ready(noise())
            assert int(model.seen) == (turn if how == "buffer" else 0)
            assert model.calls == {"number": turn, "once": 1}.get(how, 0)
            if how == "kept":
                assert model.last is found
    kinds = {"once": Prepared, "buffer": PartlyFused}  # which a copy writes to as well
    assert isinstance(program(ready), kinds.get(how, Fallback))


def test_buffers_are_read_at_every_call() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 4, 1)
            self.register_buffer("mean", torch.rand(1, 3, 1, 1))
            self.loose = torch.rand(1, 3, 1, 1)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x - self.mean * 2 + self.loose * 3))

    model = Mean().eval()
    ready = prepared(model)
    model.mean.add_(1)
    agree(model, ready)
    model.loose.add_(1)
    agree(model, ready)


def test_tracing_leaves_no_mark_and_random_numbers_are_the_users() -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())

        def forward(self, x: Any) -> Any:
            return self.body(x + torch.tensor([1.0]))

    model = Makes().eval()
    names = set(vars(model))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    prepared(model)
    assert torch.equal(torch.rand(3), expected)
    assert set(vars(model)) == names


def test_a_model_whose_modules_change_all_the_time() -> None:
    model = small()
    ready = prepared(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(12):
            model.scale = float(turn)
            agree(model, ready)
    assert ready._changes <= 10
