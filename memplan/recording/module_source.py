"""Which module's calls cut the steps of a thread, where no optimizer does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any


class ModuleSource:
    """The module whose calls cut the steps of one thread: an outermost one.

    The first that is called, until another is called again and again without it: what
    ran once before a loop (an encoder of the prompt) is not the loop.
    """

    TIMES = 3
    MOST_RIVALS = 8

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        """changed: called whenever another one becomes the source, or it is gone."""
        self._changed = changed
        self._module: weakref.ref[Any] | None = None
        self._inside: set[int] = set()  # it and its parts, by id
        self._rivals: list[tuple[weakref.ref[Any], set[int], int]] = []

    def begins_step(self, module: Any) -> bool:
        """`module` is being called; whether that begins a step."""
        known = None if self._module is None else self._module()
        if known is None:
            self._choose(module, _parts(module))
            return True
        if known is module:
            self._rivals.clear()
            return True
        return id(module) not in self._inside and self._takes_over(module)

    def has_inside(self, module: Any) -> bool:
        """Whether it is a part of the source: its calls begin no step."""
        return id(module) in self._inside

    def _choose(self, module: Any, inside: set[int]) -> None:
        self._changed()
        # The ids of what is gone may be those of other modules.
        self._module = weakref.ref(module, lambda _: self._changed())
        self._inside = inside
        self._rivals.clear()

    def _takes_over(self, module: Any) -> bool:
        """Count a call of a module beside the source; whether it becomes the source."""
        for i, (rival, inside, calls) in enumerate(self._rivals):
            if rival() is module:
                if calls + 1 < self.TIMES:
                    self._rivals[i] = rival, inside, calls + 1
                    return False
                self._choose(module, inside)
                return True
            if rival() is not None and id(module) in inside:
                return False
        if len(self._rivals) < self.MOST_RIVALS:
            self._rivals.append((weakref.ref(module), _parts(module), 1))
        return False


def _parts(module: Any) -> set[int]:
    """The ids of a module and all that it is made of."""
    return {id(part) for _, part in named_parts(module)}


def named_parts(module: Any) -> Iterator[tuple[str, Any]]:
    """A module and all that it is made of, each once, by name: as `named_modules` has
    them, whatever the program's own class has by that name, or by `modules`."""
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        name, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield name, part
        inner = [
            (f"{name}.{own}" if name else own, each)
            for own, each in part._modules.items()
            if each is not None
        ]
        waiting += reversed(inner)
