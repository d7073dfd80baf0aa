"""What a model changes as it runs, and caches that it fills at its first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from memplan.graph.call import Inputs
from memplan.graph.check import results_of
from memplan.graph.nest import PLAIN
from memplan.graph.reach import Attributes, Place


class Caches:
    """What a model that has not run keeps at its first run alone."""

    def __init__(self, before: Attributes) -> None:
        """before: the model, before that run."""
        self._before = before
        self._places: list[Place] = []

    def take(self) -> None:
        """Take what the model keeps now, after such a run: it is exported with it."""
        if not self._places:
            self._places = self._before.different()
            self._kept = _kept(self._before)

    def empty(self) -> bool:
        """Whether the model is as before that run."""
        return not self._before.different()

    def filled(self) -> bool:
        """Whether the model keeps the same now, and nothing else differs from before
        that run."""
        changed = self._before.different()
        alone = all(each in self._places for each in changed)
        return alone and _same(_kept(self._before), self._kept)


@dataclass(frozen=True)
class Changes:
    """What a model changes of what its code can reach.

    modules: those whose code does. first: those of them that do so at their first run
    alone. caches: of a model that only fills caches, with the same on other inputs.
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
        caches = Caches(before)
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
    """All that a model keeps that it did not before, in the order in which it is found:
    keys, plain values, and what else is not looked into."""
    values: list[object] = []
    for place in before.different():
        for key, value in place.now().items():
            if key not in place.then or place.then[key] is not value:
                values += [key, value]
    inside = Attributes(before.model, Inputs((values,), {}))
    keys = [repr(key) for place in inside.places for key in place.then]
    return [*keys, *inside.plain, *inside.atoms]


def _same(one: list[object], other: list[object]) -> bool:
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: object, other: object) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return one is other or (isinstance(one, PLAIN) and one == other)
    if one.layout is not torch.strided or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
