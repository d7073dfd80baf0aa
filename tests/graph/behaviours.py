"""What ordinary users write: models, and what is done with them.

Each kind of case has a table: what a forward does beside its result, what it returns,
how it branches, how it is called, and what a user changes or does between calls.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import types
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as f

Use = Callable[[Any, Any], Iterator[Any]]
SHARED = types.SimpleNamespace()  # what forwards reach outside their models
TOTAL = 0  # and so is this


def noise(*shape: int, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, 3, 8, 8), generator=generator)


class Model(nn.Module):
    """All verbs gain from its body."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 3, 1))
        self.body, self.scale = nn.Sequential(*layers), 2.0

    def forward(self, x: Any) -> Any:
        return self.body(x) * self.scale


@dataclasses.dataclass
class Case:
    """forward: of the model; members: of its class. held: makes its attributes.

    inputs: what the verbs are given. use: what a user does with the module that answers
    for the model, and with the model; yields what can be seen.
    """

    use: Callable[[Any, Any], Iterator[Any]]
    forward: Callable[..., Any] = Model.forward
    held: dict[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    members: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Any = dataclasses.field(default_factory=noise)

    def model(self) -> Any:
        """A model that nobody has called, with random numbers as they are then."""
        global TOTAL  # noqa: PLW0603
        TOTAL = 0
        vars(SHARED).clear()
        vars(SHARED).update(seen=[], cache={})
        torch.manual_seed(0)
        members = {**self.members, "forward": self.forward, "total": 0}
        model = type("Users", (Model,), members)()
        for name, make in self.held.items():
            value = make()
            if type(value) is torch.Tensor:
                model.register_buffer(name, value)
            else:
                setattr(model, name, value)
        random.seed(0)
        np.random.seed(0)
        return model.eval()


def called(m: Any, model: Any) -> Iterator[Any]:
    """What most users do."""
    for turn in range(3):
        with torch.no_grad():
            yield m(noise(seed=turn))


# What a forward does beside its result: `note`, given the model and the result.
class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Meter:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.inner = types.SimpleNamespace(count=0)

    def update(self, value: Any) -> None:
        self.values.append(value.shape)
        self.inner.count += 1


def counted(value: Any) -> Any:
    """Counts its calls at itself."""
    counted.calls = getattr(counted, "calls", 0) + 1  # type: ignore[attr-defined]
    return value


def _global(m: Any, y: Any) -> None:
    global TOTAL  # noqa: PLW0603
    TOTAL += 1


def _closure() -> Any:
    count = 0

    def count_up() -> int:
        nonlocal count
        count += 1
        return count

    return count_up


EFFECTS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "a counter": (lambda m, y: setattr(m, "calls", m.calls + 1), lambda: 0),
    "a counter of a part": (
        lambda m, y: setattr(m.body[1], "calls", getattr(m.body[1], "calls", 0) + 1),
        None,
    ),
    "a counter of the class": (
        lambda m, y: setattr(type(m), "total", type(m).total + 1),
        None,
    ),
    "a global": (_global, None),
    "a closure": (lambda m, y: m.calls(), _closure),
    "an attribute of a function": (lambda m, y: counted(y), None),
    "a buffer": (lambda m, y: m.calls.add_(1), lambda: torch.zeros(1)),
    "a deque": (lambda m, y: m.calls.append(1), lambda: deque(maxlen=2)),
    "an object": (lambda m, y: m.calls.update(y), Meter),
    "an object with slots": (
        lambda m, y: setattr(m.calls, "calls", m.calls.calls + 1),
        Slotted,
    ),
    "an array": (lambda m, y: m.calls.__iadd__(1), lambda: np.zeros(2)),
    "the last result": (lambda m, y: setattr(m, "last", y), None),
    "prints": (lambda m, y: print("called", tuple(y.shape)), None),
    "torch's random": (lambda m, y: torch.rand(3), None),
}


def _noting(m: Any, x: Any) -> Any:
    y = m.body(x)
    m.note(y)
    return y * m.scale


def _noted(m: Any, model: Any) -> Iterator[Any]:
    vars(counted).clear()
    yield from called(m, model)
    yield TOTAL, dict(vars(SHARED)), dict(vars(counted)), type(model).total
    yield getattr(model, "calls", None)
    yield random.random(), np.random.random(), torch.rand(1)
    if callable(getattr(model, "calls", None)):
        yield model.calls()


def effects() -> Iterator[tuple[str, Case]]:
    for name, (note, make) in EFFECTS.items():
        held = {"calls": make} if make else {}
        yield name, Case(_noted, _noting, held, {"note": note})


# What is made at the first call and kept: `kept`, given the model and the input.
@functools.lru_cache
def _ramp(n: int) -> Any:
    return torch.arange(n) * 0.1


def _by_shape(m: Any, x: Any, cache: Any) -> Any:
    if x.shape not in cache:
        cache[x.shape] = torch.arange(x.shape[-1]) * 0.1
    return cache[x.shape]


def _registered(m: Any, x: Any) -> Any:
    if not hasattr(m, "mask"):
        m.register_buffer(
            "mask", torch.arange(x.shape[1])[:, None, None] * 1.0, persistent=False
        )
    return m.mask


def _layer(m: Any, x: Any) -> Any:
    if "late" not in m._modules:
        m.late = nn.utils.skip_init(nn.Conv2d, x.shape[1], 3, 1, bias=False)
        nn.init.ones_(m.late.weight)
    return m.late(x)


CACHES: dict[str, tuple[Callable[[Any, Any], Any], dict[str, Any]]] = {
    "by shape": (lambda m, x: _by_shape(m, x, m.cache), {"cache": dict}),
    "global by shape": (lambda m, x: _by_shape(m, x, SHARED.cache), {}),
    "lru_cache": (lambda m, x: _ramp(x.shape[-1]), {}),
    "a buffer made late": (_registered, {}),
    "a layer made late": (_layer, {}),
}


def _keeping(m: Any, x: Any) -> Any:
    return m.body(x) + m.kept(x)


def _resized(m: Any, model: Any) -> Iterator[Any]:
    _ramp.cache_clear()
    for size in (8, 5, 8):
        with torch.no_grad():
            yield m(noise(2, 3, 8, size))
    for cache in (SHARED.cache, getattr(model, "cache", {})):
        yield {type(each) for each in cache.values()} <= {torch.Tensor}
        cache.clear()  # whether a cache is filled is no matter
    yield _ramp(8)


def caches() -> Iterator[tuple[str, Case]]:
    for name, (kept, held) in CACHES.items():
        ones = functools.cached_property(lambda m: torch.ones(1))
        ones.__set_name__(Model, "ones")
        ramp = functools.lru_cache(lambda m, n: torch.arange(n) * 0.1)
        members = {"kept": kept, "ones": ones, "ramp": ramp}
        yield name, Case(_resized, _keeping, held, members)


# What a forward returns: given the model, its input and the body's result.
Pair = namedtuple("Pair", ("first", "second"))


@dataclasses.dataclass
class Output:
    value: Any
    loss: Any = None
    names: list[str] = dataclasses.field(default_factory=lambda: ["a"])


class Named(OrderedDict[str, Any]):
    """As those of transformers, by name and by attribute."""

    def __init__(self, **given: Any) -> None:
        super().__init__(given)
        vars(self).update(given)


def _generated(m: Any, x: Any, y: Any) -> Iterator[Any]:
    for layer in m.body:
        x = layer(x)
        yield x


RESULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a dataclass": lambda m, x, y: Output(y),
    "a dict with attributes": lambda m, x, y: Named(value=y, more=y.sum()),
    "a generator": _generated,
    "its input": lambda m, x, y: (x, y),
    "one tensor twice": lambda m, x, y: [y, y, (y,)],
    "views of one": lambda m, x, y: (*y.chunk(3, 1), y.transpose(1, 2)),
    "a parameter": lambda m, x, y: (m.body[0].weight, y),
    "a size": lambda m, x, y: (y, y.shape, y.dtype, y.device),
    "an array": lambda m, x, y: y.detach().numpy(),
    "nothing": lambda m, x, y: None,
    "conjugate": lambda m, x, y: torch.fft.rfft(y).conj(),
    "sparse": lambda m, x, y: y[0, 0].relu().to_sparse(),
    "what is not 0": lambda m, x, y: (y > 0).nonzero(),
}


def _answering(m: Any, x: Any) -> Any:
    return m.answer(x, m.body(x))


def _written(m: Any, model: Any) -> Iterator[Any]:
    """Results are the user's own to write to."""
    for turn in range(2):
        x = noise(seed=turn)
        with torch.no_grad():
            found = m(x)
            found = list(found) if isinstance(found, Iterator) else found
            yield copy.deepcopy(found)
            for each in found if isinstance(found, (tuple, list)) else [found]:
                if type(each) is torch.Tensor and each.is_contiguous():
                    each.zero_()
        yield x, found[0] is x if isinstance(found, tuple) else None
        yield model.state_dict()


def _detached(m: Any, model: Any) -> Iterator[Any]:
    for found in called(m, model):
        yield [each.detach() for each in found]


def results() -> Iterator[tuple[str, Case]]:
    held = {"table": lambda: torch.arange(3.0)}
    for name, answer in RESULTS.items():
        # What is the model's own is returned as a copy, which docs/compiling.md says.
        use = _detached if name in ("a parameter", "a buffer") else _written
        yield name, Case(use, _answering, held, {"answer": answer})


# Forwards that branch.
def _of_data(m: Any, x: Any) -> Any:
    return m.body(x) if x.sum() > 0 else x - 1


def _tries(m: Any, x: Any) -> Any:
    try:
        return m.body(x.view(2, 3, 64, -1))
    except RuntimeError:
        return m.body(x.reshape(2, 3, -1, 4))


def _checks(m: Any, x: Any) -> Any:
    if x.shape[0] > 2:
        raise ValueError("too many")
    assert x.shape[1] == 3, "colours"
    return m.body(x)


def _hooked(m: Any, x: Any) -> Any:
    seen: list[Any] = []
    handle = m.body[1].register_forward_hook(lambda *call: seen.append(call[-1]))
    try:
        return m.body(x), seen[0]
    finally:
        handle.remove()


BRANCHES: dict[str, Callable[[Any, Any], Any]] = {
    "on data": _of_data,
    "tries": _tries,
    "checks": _checks,
    "on gradients": lambda m, x: m.body(x) * (2 if torch.is_grad_enabled() else 3),
    "on inference mode": lambda m, x: (
        m.body(x) * (2 if torch.is_inference_mode_enabled() else 3)
    ),
    "dropout that stays": lambda m, x: f.dropout(m.body(x), 0.5, training=True),
    "writes to its input": lambda m, x: m.body(x.mul_(2)),
    "under autocast": torch.autocast("cpu", torch.bfloat16)(lambda m, x: m.body(x)),
    "with hooks of its own": _hooked,
    "checkpointed": lambda m, x: torch.utils.checkpoint.checkpoint(
        m.body, x, use_reentrant=False
    ),
}


def _branching(m: Any, model: Any) -> Iterator[Any]:
    wide = noise(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for x in (noise(), noise() - 9, wide, noise() * float("nan")):
        with torch.no_grad():
            yield attempt(m, x.clone())
        yield attempt(m, x.clone())
        with torch.inference_mode():
            yield attempt(m, x.clone())
    given = noise()
    yield attempt(m, given), given
    with torch.no_grad():
        yield attempt(m, noise(4, 3, 8, 8)[:2])
        yield attempt(m, noise(2, 4, 8, 8)), attempt(m, None)
    found = attempt(m, noise().requires_grad_())
    yield found


def attempt(m: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call returns or raises, as users see it."""
    try:
        found = m(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).splitlines()[:1]
    return found


def branches() -> Iterator[tuple[str, Case]]:
    for name, forward in BRANCHES.items():
        yield name, Case(_branching, forward)


KINDS = (effects, caches, results, branches)
