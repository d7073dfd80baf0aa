"""Arguments of calls that are made twice, and the objects among them."""

from __future__ import annotations

import random
import threading
import types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from memplan.applying.arguments import Arguments  # noqa: E402
from memplan.recording.held import alike, copy_of, is_object, tensors_in  # noqa: E402

Pair = namedtuple("Pair", "one other")


class State:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("held", "missing")

    def __init__(self, held: Any) -> None:
        self.held = held


@dataclass(frozen=True)
class Frozen:
    held: list[Any] = field(default_factory=list)


class Locked(State):
    def __copy__(self) -> Any:
        raise TypeError("there is one of it")


def same_objects(found: Any, wanted: list[Any]) -> bool:
    return [id(each) for each in found] == [id(each) for each in wanted]


def test_tensors_in_anything() -> None:
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    held = State(list=[one, (two, {"x": three})], text="a", number=1)
    assert same_objects(tensors_in(held), [one, two, three])
    assert same_objects(tensors_in(Pair(one, Slotted(two))), [one, two])
    assert same_objects(tensors_in(OrderedDict(a=Frozen([one]))), [one])
    assert same_objects(tensors_in((one, one)), [one, one])
    for value in (None, "text", types, torch.nn.Linear(1, 1), torch.device("cpu"), len):
        assert not list(tensors_in(value))
    ring = State()
    ring.own = [ring, one]
    assert same_objects(tensors_in(ring), [one])


def test_what_counts_as_an_object() -> None:
    assert is_object(State(a=1))
    assert is_object(Slotted(1))
    for value in (1, "a", [1], {"a": 1}, torch.zeros(1), torch.nn.Linear(1, 1), State):
        assert not is_object(value)


def test_copies_share_tensors_only() -> None:
    one = torch.zeros(1)
    inner = {"keys": [one]}
    value = State(held=inner, again=inner, pair=Pair([one], 2), own=Slotted([one]))
    value.frozen = Frozen([one])
    value.ring = value
    copied = copy_of(value)
    assert alike(value, copied)
    assert copied.held is copied.again is not inner
    assert copied.ring is copied
    assert same_objects(tensors_in(copied), [one] * 4)
    inner["keys"].append(one)
    value.frozen.held.clear()
    assert len(copied.held["keys"]) == len(copied.frozen.held) == 1
    assert not alike(value, copied)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: setattr(state, "number", 2),
        lambda state: state.items.pop(),
        lambda state: state.items.__setitem__(0, torch.zeros(1)),
        lambda state: setattr(state, "more", None),
        lambda state: setattr(state, "items", tuple(state.items)),
    ],
)
def test_what_makes_objects_differ(change: Any) -> None:
    state = State(number=1, items=[torch.zeros(1)])
    before = copy_of(state)
    assert alike(before, state)
    change(state)
    assert not alike(before, state)


def test_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    only = Locked(held=[1])
    copied = copy_of([lock, only])
    assert copied[0] is lock
    assert copied[1] is only
    numbers = random.Random(1)
    first = copy_of([numbers])[0].random()
    assert first == numbers.random()


def test_deep_and_large_values() -> None:
    chain: Any = None
    for _ in range(5000):
        chain = State(next=chain)
    copied = copy_of(chain)
    assert alike(chain, copied)
    assert not list(tensors_in(chain))
    assert len(copy_of(list(range(100_000)))) == 100_000


def test_a_second_call_finds_what_the_first_found() -> None:
    value, cache = torch.ones(1), State(keys=[], seen=0)
    config = State(size=3)
    arguments = Arguments((value, [value]), {"cache": cache, "config": config})
    values = tuple(arguments.values)
    assert arguments.fresh
    args, kwargs = arguments.first()
    assert kwargs["cache"] is cache
    cache.keys.append(value)
    cache.seen += 1
    args[1].append(3)
    arguments.made()
    assert not arguments.fresh
    for _ in range(2):
        args, kwargs = arguments.again(values)
        assert args[0] is args[1][0] is value
        assert len(args[1]) == 1
        assert (kwargs["cache"].keys, kwargs["cache"].seen) == ([], 0)
        kwargs["cache"].keys.append(1)
        assert kwargs["config"] is config


def test_a_tensor_that_an_object_holds_may_not_change() -> None:
    state = State(value=torch.ones(1))
    arguments = Arguments((state,), {})
    values = tuple(arguments.values)
    arguments.first()
    arguments.made()
    args, _ = arguments.again(values)
    assert args[0].value is state.value
    state.value.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        arguments.again(values)
