"""What a model changes as it runs, and caches that it fills at its first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from memplan.graph.call import Inputs
from memplan.graph.check import results_of
from memplan.graph.nest import PLAIN
from memplan.graph.reach import Attributes, Held, Place
from memplan.graph.weights import Watch, fetch, places


class Caches:
    """What a model that has not run keeps at its first run alone, and which does not
    depend on its inputs' values."""

    def __init__(self, model: nn.Module, before: Attributes) -> None:
        """before: the model, before that run."""
        self._model, self._before = model, before
        self._held: list[tuple[Place, Held]] = []

    def take(self) -> None:
        """Take what the model keeps now, after such a run: it is exported with it."""
        if self._held:
            return
        self._held = [(each, each.now()) for each in self._before.different()]
        self._kept = _kept(self._before)
        there = {id(each) for each in self._before.tensors}
        found = {each: fetch(self._model, each) for each in places(self._model)}
        names = [name for name, tensor in found.items() if id(tensor) in there]
        self._weights = Watch(self._model, names)

    def fill(self) -> bool:
        """Have the model, which is as before that run, keep what it would; whether that
        is so: it may depend on weights, which are then others."""
        if not self._weights.same_weights():
            return False
        for place, held in self._held:
            place.put(held)
        return True

    def empty(self) -> bool:
        """Whether the model is as before that run."""
        return not self._before.different()

    def filled(self) -> bool:
        """Whether all that differs from before that run is that it was."""
        places = [place for place, _ in self._held]
        others = (each for each in self._before.different() if each not in places)
        return next(others, None) is None and _same(_kept(self._before), self._kept)


@dataclass(frozen=True)
class Changes:
    """What a model changes of what its code can reach.

    modules: those whose code does. first: those of them that do so at their first run
    alone. caches: of a model that only fills caches.
    """

    modules: set[nn.Module] = field(default_factory=set)
    first: set[nn.Module] = field(default_factory=set)
    caches: Caches | None = None


def changes_of(model: nn.Module, inputs: Inputs, run: Callable[[], object]) -> Changes:
    """What a run of the model changes, all of which is put back."""
    before = Attributes(model)
    run()
    changed = set(before.changed())
    if not changed:
        before.restore()
        return Changes()
    settled = Attributes(model)
    run()
    first = changed.difference(settled.changed())
    caches = None
    if first == changed and _independent(model, inputs, before):
        caches = Caches(model, before)
    before.restore()
    return Changes(changed, first, caches)


def _independent(model: nn.Module, inputs: Inputs, before: Attributes) -> bool:
    """Whether what the model keeps is the same on these inputs and on others."""
    found: list[list[object]] = []

    def run(*args: object, **kwargs: object) -> object:
        before.restore()
        result = model(*args, **kwargs)
        found.append(_kept(before))
        return result

    results_of(inputs, model, run)
    return len(found) == 2 and _same(*found)


def _kept(before: Attributes) -> list[object]:
    """All that a model keeps that it did not before: in the order in which it is found,
    with the keys."""
    values: list[object] = []
    for place in before.different():
        for key, value in place.now().items():
            if key not in place.then or place.then[key] is not value:
                values += [key, value]
    inside = Attributes(before.model, Inputs((values,), {}))
    plain = [
        each
        for place in inside.places
        for item in place.then.items()
        for each in item
        if isinstance(each, PLAIN)
    ]
    return [*plain, *inside.atoms]


def _same(one: list[object], other: list[object]) -> bool:
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: object, other: object) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return one is other or (isinstance(one, PLAIN) and one == other)
    if one.layout is not torch.strided or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
