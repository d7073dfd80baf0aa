"""What modules hold beside submodules and weights, changed after a model was prepared:
the next calls give what the model gives."""

from __future__ import annotations

import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402

pytestmark = pytest.mark.torch


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self, value: float) -> None:
        self.value = value


class Numbers(list[float]):
    """A subclass."""


class Setting:
    """An object within an object, which knows who holds it."""

    limits: Any = {"most": 2.0}  # noqa: RUF012

    def __init__(self, above: Any = None) -> None:
        self.above, self.value = above, 1.0
        if above is None:
            self.below = Setting(self)


class Doubled(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class Inner(nn.Module):
    """A module whose submodules nobody registers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(x)


class Holding(nn.Module):
    """Everything that it holds is used."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        nn.init.uniform_(self.norm.running_mean)
        self.heads = [nn.Conv2d(4, 4, 3, padding=1)]
        self.named: Any = {"a": {"b": (Inner().eval(),)}}
        self.run = Inner().eval().forward
        self.alias = [self.stem.bias]
        self.empty = nn.Sequential()
        self.nested: Any = {"n": {"z": 1.0}, "l": [1.0, [2.0]]}
        self.space = types.SimpleNamespace(inner=types.SimpleNamespace(q=1.0))
        self.pair = ([1.0], 2)
        self.words = {"one"}
        self.queue = deque([1.0])
        self.order = OrderedDict(a=2.0, b=3.0)
        self.list = Numbers([1.0])
        self.bytes = bytearray(b"\x01")
        self.array, self.large = np.ones((2, 4))[:, ::2], np.ones(50_000)
        self.objects = np.array([[1.0], None], dtype=object)
        self.slotted, self.setting = [Slotted(1.0)], Setting()
        self.tensors = {"t": [torch.ones(4, 1, 1)]}

    def forward(self, x: Any) -> Any:
        y = self.heads[0](self.norm(self.empty(self.stem(x))).relu())
        y = (
            self.run(self.named["a"]["b"][0](y)) * self.tensors["t"][0]
            + self.alias[0].sum()
        )
        y = y * self.nested["n"]["z"] * self.nested["l"][1][0] * self.space.inner.q
        y = y * self.pair[0][0] * len(self.words) * self.queue[0] * self.list[0]
        y = y * next(iter(self.order.values())) * self.bytes[0] * self.factor
        y = y * float(self.array[1, 1]) * float(self.large[0] + self.large[-1])
        y = y * self.objects[0][0] * self.slotted[0].value
        return y * self.setting.below.value * Setting.limits["most"]


def assigned(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def emptied(model: Any) -> None:
    model.slotted[0].empty = 1
    model.slotted[0].value = 3.0


def loaded(model: Any) -> None:
    model.heads[0].load_state_dict(nn.Conv2d(4, 4, 3).state_dict())


def other_class(model: Any) -> None:
    model.stem.__class__ = Doubled


def expanded(tensor: Any) -> None:
    tensor.data = tensor.data[:1].expand(4)


def restrided(model: Any) -> None:
    model.to(memory_format=torch.channels_last)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a weight in a list": lambda m: m.heads[0].weight.mul_(3),
    "a state in a list": loaded,
    "another weight in a list": lambda m: assigned(
        m.heads[0], "weight", nn.Parameter(torch.randn(4, 4, 3, 3))
    ),
    "no bias in a list": lambda m: assigned(m.heads[0], "bias", None),
    "another module in a list": lambda m: m.heads.__setitem__(0, nn.Identity()),
    "a hook in a list": lambda m: m.heads[0].register_forward_hook(
        lambda _, inputs, output: output * 2
    ),
    "an attribute in a list": lambda m: assigned(m.heads[0], "padding", (2, 2)),
    "data in a list": lambda m: m.heads[0].weight.data.mul_(3),
    "a class in a list": lambda m: assigned(m.heads[0], "__class__", Doubled),
    "statistics in a tuple": lambda m: m.named["a"]["b"][0].norm.running_mean.add_(3),
    "a mode in a tuple": lambda m: m.named["a"]["b"][0].train(),
    "a number of a method's module": lambda m: assigned(
        m.run.__self__.norm, "eps", 0.5
    ),
    "a module of an empty one": lambda m: m.empty.append(nn.Tanh()),
    "a weight that a list keeps": lambda m: assigned(
        m.stem, "bias", nn.Parameter(torch.ones(4) * 2)
    ),
    "a nested dict": lambda m: m.nested["n"].update(z=3.0),
    "a nested list": lambda m: m.nested["l"][1].__setitem__(0, 5.0),
    "a nested object": lambda m: assigned(m.space.inner, "q", 4.0),
    "a list in a tuple": lambda m: m.pair[0].append(m.pair[0].pop() + 2),
    "a set": lambda m: m.words.add("two"),
    "a deque": lambda m: m.queue.appendleft(3.0),
    "an order": lambda m: m.order.move_to_end("a"),
    "a list of a subclass": lambda m: m.list.insert(0, 3.0),
    "bytes": lambda m: m.bytes.__setitem__(0, 3),
    "a view of an array": lambda m: m.array.__setitem__((1, 1), 3.0),
    "a large array": lambda m: m.large.__imul__(2),
    "the end of a large array": lambda m: m.large.__setitem__(-1, 9.0),
    "an array's list": lambda m: m.objects[0].__setitem__(0, 3.0),
    "an array's object": lambda m: m.objects.__setitem__(0, [3.0]),
    "slots": emptied,
    "an object in a cycle": lambda m: assigned(m.setting.below, "value", 3.0),
    "a tensor in a list": lambda m: m.tensors["t"][0].mul_(3),
    "another tensor in a list": lambda m: m.tensors["t"].__setitem__(
        0, torch.full((4, 1, 1), 3.0)
    ),
    "a dict of a class": lambda m: Setting.limits.update(most=5.0),
    "an attribute of a class": lambda m: assigned(type(m), "factor", 3.0),
    "a method of a class": lambda m: assigned(
        Inner, "forward", lambda self, x: self.norm(x) * 3
    ),
    "a method of torch's": lambda m: assigned(
        nn.BatchNorm2d, "forward", lambda self, x: x * 2
    ),
    "the class of a module": other_class,
    "an expanded bias": lambda m: expanded(m.stem.bias),
    "expanded statistics": lambda m: expanded(m.norm.running_mean),
    "another memory format": restrided,
}


def fused(model: Any, x: Any) -> Any:
    return memplan.fuse(model, options=memplan.FuseOptions(measure=False))


def compiled(model: Any, x: Any) -> Any:
    options = memplan.CompileOptions(pack=True, max_slowdown=1000)
    return memplan.compile(model, x, options=options)


def chunked(model: Any, x: Any) -> Any:
    options = memplan.ChunkOptions(max_slowdown=1000)
    return memplan.chunk(model, x, budget="90%", options=options)


# All verbs compare with the same; these are those that names of weights do not cover.
OF_CHUNKED = {
    *("a weight in a list", "a hook in a list", "a weight that a list keeps"),
    *("a nested dict", "a set", "the class of a module", "another memory format"),
}
VERBS = {each.__name__: each for each in (fused, compiled, chunked)}


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes are as they were, in the end."""
    monkeypatch.setattr(Setting, "limits", {"most": 2.0})
    monkeypatch.setattr(Holding, "factor", 1.0)
    for each in (Inner, nn.BatchNorm2d):
        monkeypatch.setattr(each, "forward", each.forward)


def agree(model: Any, module: Any, x: Any) -> Any:
    expected = model(x)
    for _ in range(3):
        found = module(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    return expected


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize(
    ("verb", "change"),
    [
        (verb, change)
        for verb in VERBS
        for change in CHANGES
        if verb != "chunked" or change in OF_CHUNKED
    ],
)
def test_the_next_calls_are_right(verb: str, change: str) -> None:
    model, x = Holding().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing has changed
            module = VERBS[verb](model, x)
            before = agree(model, module, x)
        CHANGES[change](model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            after = agree(model, module, x)
    assert change == "another memory format" or not torch.equal(before, after)


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("verb", VERBS)
def test_weights_in_lists_of_their_modules_are_packed_again(verb: str) -> None:
    model, x = Holding().eval(), torch.randn(2, 3, 16, 16)
    module = VERBS[verb](model, x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(model, module, x)
        model.stem.bias.mul_(3)
        agree(model, module, x)
