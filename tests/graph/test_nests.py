"""Results that are objects, such as caches, run by every verb as the model's own."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.errors import UsageError  # noqa: E402
from memplan.graph.nest import flatten  # noqa: E402
from tests.compiling.modules import compiled  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.torch
VERBS = ("compile", "chunk", "fuse")


class Mode(enum.Enum):
    LAZY = 1


class Layer:
    """Keys and values of one layer; nothing before the first update."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.filled = False
        self.mode, self.dtype = Mode.LAZY, None

    def update(self, keys: Any) -> Any:
        start = [self.keys] if self.filled else []
        self.keys, self.filled, self.dtype = (
            torch.cat([*start, keys], 1),
            True,
            keys.dtype,
        )
        return self.keys


class Cache:
    kind = Layer

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.of, self.settings = Layer, {"window": 4}

    def __len__(self) -> int:
        return len(self.layers)


class Slotted:
    __slots__ = ("again", "first", "unset")


@dataclass(frozen=True)
class Output:
    logits: Any
    cache: Cache
    extra: dict[str, Any] = field(default_factory=dict)


class Named(OrderedDict[str, Any]):
    """Items that are attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        vars(self).update(items)


class Decoder(nn.Module):  # type: ignore[misc]
    """Returns what `answer` makes of its hidden values; it has what every verb runs."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 256), nn.Linear(256, 4)
        self.answer, self.kept = answer, Cache()

    def forward(self, x: Any, cache: Any = None) -> Any:
        wide = torch.relu(self.first(x)) * 2 + 1
        for _ in range(3):
            wide = torch.tanh(wide) * wide
        return self.answer(self, self.second(wide), cache)


def with_cache(_: Decoder, y: Any, __: Any = None) -> Output:
    cache = Cache()
    for scale in (2, 3):
        cache.layers.append(Layer())
        cache.layers[-1].update(y * scale)
    return Output(y, cache, {"layers": cache.layers, "size": y.shape[0]})


def slotted(_: Decoder, y: Any, __: Any = None) -> Slotted:
    found = Slotted()
    found.first = found.again = Cache()
    found.first.layers.append(Layer())
    found.first.layers[0].update(y)
    return found


def named(_: Decoder, y: Any, __: Any = None) -> dict[str, Any]:
    return {"out": Named(logits=y, twice=y * 2), "rest": (None, 3)}


ANSWERS = {"cache": with_cache, "slots": slotted, "items": named}
X = (torch.randn(512, 16), torch.randn(512, 16))


def prepared(verb: str, model: Any, *inputs: Any) -> Any:
    if verb == "compile":
        return compiled(model, inputs)
    if verb == "chunk":
        options = memplan.ChunkOptions(max_slowdown=None)
        return memplan.chunk(model, inputs, "80%", options=options)
    return memplan.fuse(model, memplan.FuseOptions(measure=False))


def runs(verb: str, module: Any) -> bool:
    """Whether something else than the model ran."""
    if verb == "fuse":
        return any(hasattr(each, "runner") for each in module.programs())
    return bool(module.runner if verb == "compile" else "" in module.chunks)


def held(value: Any) -> list[tuple[object, Any]]:
    """What a container or an object holds, by name."""
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, Slotted):
        names = [each for each in Slotted.__slots__ if hasattr(value, each)]
        return [(name, getattr(value, name)) for name in names]
    items = list(value.items()) if isinstance(value, dict) else []
    own = isinstance(value, Named | Cache | Layer | Output)
    return [*items, *(vars(value).items() if own else ())]


def alike(one: Any, other: Any) -> bool:
    """Whether two results have the same types, names and tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.allclose(one, other, atol=1e-5)
    mine, theirs = held(one), held(other)
    if not mine:
        return not theirs and (isinstance(one, dict | list) or bool(one == other))
    names = [name for name, _ in mine] == [name for name, _ in theirs]
    return names and all(
        alike(left, right) for (_, left), (_, right) in zip(mine, theirs, strict=True)
    )


def containers(value: Any) -> set[int]:
    """Ids of the mutable objects in a result."""
    parts = held(value)
    found = set[int]().union(*(containers(each) for _, each in parts))
    return found | {id(value)} if parts and not isinstance(value, tuple) else found


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_result_is_the_models_with_containers_of_its_own(
    verb: str, name: str
) -> None:
    model = Decoder(ANSWERS[name]).eval()
    with torch.no_grad():
        module = prepared(verb, model, X[0])
        found = [module(x) for x in (*X, X[0])]
        expected = [model(x) for x in (*X, X[0])]
        assert runs(verb, module)
    assert all(map(alike, expected, found))
    assert not alike(found[0], found[1])
    shared = [containers(each) for each in (*found, model.kept)]
    assert len(set().union(*shared)) == sum(map(len, shared))
    if name == "cache":
        found[0].cache.layers.clear()  # what the caller does to one is not in the next
        assert found[1].extra["layers"] is found[1].cache.layers
        with torch.no_grad():
            assert alike(module(X[1]), expected[1])
    if name == "slots":
        assert found[0].first is found[0].again


def test_results_with_objects_refuse_gradients() -> None:
    model = Decoder(with_cache).eval()
    module = compiled(model, (X[0],))
    keys = module(X[0]).cache.layers[0].keys
    assert keys.requires_grad
    with pytest.raises(UsageError, match="no gradients"):
        keys.sum().backward()


def of_its_own(s: Decoder, y: Any, _: Any = None) -> Any:
    return y, s.kept


def locked(_: Decoder, y: Any, __: Any = None) -> Any:
    cache = Cache()
    cache.settings = {"lock": threading.Lock()}  # type: ignore[dict-item]
    return y, cache


class Pickled(Cache):
    def __getstate__(self) -> object:
        return {}


def pickled(_: Decoder, y: Any, __: Any = None) -> Any:
    return y, Pickled()


def module_out(s: Decoder, y: Any, _: Any = None) -> Any:
    return y, s.first


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (of_its_own, "it returns an object that it keeps"),
        (locked, "it returns a lock, which cannot be rebuilt"),
        (pickled, "it returns a Pickled, which cannot be rebuilt"),
        (module_out, "it returns a Linear, which cannot be rebuilt"),
    ],
)
def test_other_results_are_refused(answer: Callable[..., Any], reason: str) -> None:
    model = Decoder(answer).eval()
    module = memplan.compile(model, (X[0],))
    assert module.memplan.reason.startswith(reason)
    with pytest.warns(UserWarning, match=reason):
        fused = memplan.fuse(model, memplan.FuseOptions(measure=False))
        with torch.no_grad():
            assert torch.equal(fused(X[0])[0], model(X[0])[0])


def given_back(_: Decoder, y: Any, cache: Any) -> Any:
    cache.layers[0].update(y)
    return y, cache


def test_a_cache_that_the_model_is_given_is_updated_by_the_model() -> None:
    model = Decoder(given_back).eval()
    cache = Cache()
    cache.layers.append(Layer())
    with torch.no_grad():
        module = memplan.compile(model, (X[0], cache))
        assert module.memplan.status == "unchanged"
        assert not cache.layers[0].filled  # compiling runs the model many times
        y, found = module(X[0], cache)
    assert found is cache
    assert torch.equal(cache.layers[0].keys, y)


def appended(_: Decoder, y: Any, outputs: Any) -> Any:
    outputs.append(y)
    return y


def test_a_list_that_the_model_is_given_is_extended_by_the_model() -> None:
    model, outputs = Decoder(appended).eval(), [torch.ones(2)]
    with torch.no_grad():
        module = memplan.compile(model, (X[0], outputs))
        assert module.memplan.reason == "it changes its arguments"
        assert len(outputs) == 1
        y = module(X[0], outputs)
    assert outputs[1] is y


def test_an_object_that_holds_itself_is_rebuilt() -> None:
    one = Cache()
    one.settings = {"cache": one, "x": X[0]}  # type: ignore[dict-item]
    leaves, rebuild = flatten((one, one))
    first, second = rebuild(list(leaves))  # type: ignore[misc]
    assert first is second is first.settings["cache"]
    assert first is not one
    assert first.settings["x"] is X[0]
    assert len(leaves) == 1
