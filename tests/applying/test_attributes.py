"""Modules' own attributes: what a call changed of them is put back."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from memplan.applying.attributes import (  # noqa: E402
    all_attributes,
    plain_attributes,
    put_back_all,
)

VALUES = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.booleans())


class Frozen(OrderedDict[str, Any]):
    """As configurations of models are: it refuses to be changed."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(args)

    def clear(self) -> None:
        raise TypeError

    @classmethod
    def made(cls, values: dict[str, Any]) -> Frozen:
        new = cls()
        for key, value in values.items():
            OrderedDict.__setitem__(new, key, value)
        new.frozen = True
        return new


class Named(dict[str, Any]):
    """A dictionary with attributes of its own."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.kind = "named"


class Listed(list[Any]):
    pass


def default(values: dict[str, Any]) -> Any:
    return defaultdict(int, values)


DICTIONARIES: list[Callable[[dict[str, Any]], Any]] = [
    dict,
    OrderedDict,
    Frozen.made,
    Named,
    default,
]


def held(value: Any) -> tuple[Any, Any]:
    items = list(value.items()) if isinstance(value, dict) else list(value)
    return items, dict(getattr(value, "__dict__", {}))


@pytest.mark.parametrize("attributes", [plain_attributes, all_attributes])
@given(
    make=st.sampled_from(DICTIONARIES),
    before=st.dictionaries(st.text(max_size=3), VALUES, max_size=5),
    after=st.dictionaries(st.text(max_size=3), VALUES, max_size=5),
)
def test_dictionaries(
    attributes: Callable[[Any], dict[str, Any]],
    make: Callable[[dict[str, Any]], Any],
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    module = nn.Module()
    module.values = value = make(before)
    expected = held(value)
    state = attributes(module)
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    base.clear(value)
    for key, each in after.items():
        base.__setitem__(value, key, each)
    if hasattr(value, "kind"):
        value.kind = "another"
    module.values = None
    put_back_all(module, state)
    assert module.values is value
    assert held(value) == expected


@given(
    make=st.sampled_from([list, Listed, deque, set]),
    before=st.lists(st.integers(), max_size=5),
    after=st.lists(st.integers(), max_size=5),
)
def test_sequences_and_sets(
    make: Callable[[Any], Any], before: list[int], after: list[int]
) -> None:
    module = nn.Module()
    module.values = value = make(before)
    state = plain_attributes(module)
    value.clear()
    for each in after:
        (value.add if isinstance(value, set) else value.append)(each)
    put_back_all(module, state)
    assert module.values is value
    assert value == make(before)


def test_what_is_not_changed_is_not_written() -> None:
    module = nn.Module()
    module.config = config = Frozen.made({"width": 8})
    module.counts = Counter("abc")
    state = plain_attributes(module)
    put_back_all(module, state)
    assert module.config is config
    assert list(config) == ["width"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator().manual_seed(1),
        lambda: random.Random(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.RandomState(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
    ],
)
def test_generators(make: Callable[[], Any]) -> None:
    def draw(generator: Any) -> float:
        if isinstance(generator, torch.Generator):
            return float(torch.rand((), generator=generator))
        return float(generator.random())

    module = nn.Module()
    module.generator = make()
    draw(module.generator)
    state = plain_attributes(module)
    drawn = [draw(module.generator) for _ in range(3)]
    put_back_all(module, state)
    assert [draw(module.generator) for _ in range(3)] == drawn


def test_what_holds_tensors_is_only_put_back_after() -> None:
    module = nn.Module()
    module.cache = cache = {"keys": torch.zeros(2)}
    before = copy.copy(cache)
    assert "cache" not in plain_attributes(module)
    state = all_attributes(module)
    cache["values"] = torch.ones(2)
    put_back_all(module, state)
    assert module.cache is cache
    assert cache.keys() == before.keys()


def test_a_generator_of_the_system_is_left_alone() -> None:
    module = nn.Module()
    module.generator = generator = random.SystemRandom()
    for attributes in (plain_attributes, all_attributes):
        put_back_all(module, attributes(module))
    assert module.generator is generator
