"""Where a program's steps begin, as they happen.

Three signs, weakest first: the outermost module's forward call, an optimizer's
step, and `memplan.step()` in the program itself. The recorder notes them all; the
loader follows the kind its plan was made with.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

from memplan.errors import UsageError
from memplan.native import _alloc
from memplan.recording.module_source import ModuleSource
from memplan.trace.trace import Mark

Listener = Callable[[Mark], None]


class Boundaries:
    """Tells a listener of step boundaries, from `start` to `stop`.

    Only one can listen at a time in a process.
    """

    _active: Boundaries | None = None

    def __init__(self, listener: Listener, kinds: Collection[Mark]) -> None:
        self._listener = listener
        self._kinds = frozenset(kinds)
        self._handles: dict[Mark, Any] = {}
        self._watches_modules = False
        # The first optimizer to step, and the first module called, cut the steps of a
        # thread; a second one beside it (an adversary's, a metric's) does not.
        self._sources = threading.local()
        self._kind: type | None = None  # of the module whose calls do
        self._forwards = 0  # its calls

    def start(self) -> None:
        """Hook optimizers and modules. Raises UsageError if another is listening."""
        if Boundaries._active is not None:
            raise UsageError("memplan is already recording or applying in this process")
        Boundaries._active = self
        if Mark.OPTIMIZER in self._kinds:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._handles[Mark.OPTIMIZER] = register_optimizer_step_post_hook(
                _alloc.quietly(self._optimizer_stepped)
            )
        if Mark.FORWARD in self._kinds:
            self._handles[Mark.FORWARD] = _Calls(self._forward_called)
            self._watches_modules = True

    def stop(self) -> None:
        """Take the hooks off again; harmless when there are none."""
        if Boundaries._active is self:
            Boundaries._active = None
        for mark in list(self._handles):
            self._unhook(mark)

    def _unhook(self, mark: Mark) -> None:
        handle = self._handles.pop(mark, None)
        self._watches_modules = Mark.FORWARD in self._handles
        if handle is not None:
            handle.remove()

    def _optimizer_stepped(self, optimizer: object, *_: object) -> None:
        known: weakref.ref[Any] | None = getattr(self._sources, "optimizer", None)
        if known is None or known() is None:
            self._sources.optimizer = known = weakref.ref(optimizer)
        if known() is optimizer:
            # From now on the stronger sign is there; modules need not be watched.
            if self._watches_modules:
                self._unhook(Mark.FORWARD)
            self._listener(Mark.OPTIMIZER)

    def _forward_called(self, module: Any) -> bool:
        """A module is called; whether this thread need not be told again of its calls.

        Its parts need not, as long as the module is that whose calls cut its steps.
        """
        # A program that a compiler traces is not running; what it compiles is called
        # through a module of its own, which is seen here.
        if sys.modules["torch"].compiler.is_compiling():
            return False
        source: ModuleSource | None = getattr(self._sources, "module", None)
        if source is None:
            if not self._joins(module):
                return False
            source = self._sources.module = ModuleSource(_alloc.tell_again)
        if source.begins_step(module):
            self._forwards += 1
            self._listener(Mark.FORWARD)
            return False
        return source.has_inside(module)

    def _joins(self, module: object) -> bool:
        """Whether the calling thread, which marked nothing yet, is to from now on.

        If it calls a module of the class that other threads call, or the others have
        ceased to: a thread that only prepares images does not cut their steps.
        """
        kind, sources = type(module), self._sources
        calls, forwards = getattr(sources, "others", (0, 0))
        calls = calls + 1 if forwards == self._forwards else 1
        sources.others = calls, self._forwards
        if self._kind not in (None, kind) and calls < ModuleSource.TIMES:
            return False
        self._kind = kind
        return True

    def _explicit_step(self) -> None:
        if Mark.EXPLICIT in self._kinds:
            self._unhook(Mark.FORWARD)
            self._unhook(Mark.OPTIMIZER)
            self._listener(Mark.EXPLICIT)


class _Calls:
    """Tells a listener of every call of a module, until it is removed."""

    def __init__(self, listener: Callable[[Any], bool]) -> None:
        from torch.nn import Module

        # A class may take the place of another's while it is watched.
        self._function = Module._call_impl
        _alloc.watch_steps(self._function, listener)

    def remove(self) -> None:
        _alloc.watch_steps(self._function, None)


class StepCount:
    """The steps so far, by the strongest kind of mark seen."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._marks = [0] * (max(Mark) + 1)  # by mark: its hash is Python's, and slow

    def add(self, mark: Mark) -> bool:
        """Count a mark; whether with it as many steps as the limit have ended."""
        self._marks[mark] += 1
        # An optimizer's mark ends a step; the others begin one.
        ended = self._marks[mark] - (mark is not Mark.OPTIMIZER)
        return self._limit is not None and mark is self.mark and ended >= self._limit

    @property
    def mark(self) -> Mark:
        """The strongest kind so far."""
        return max((kind for kind in Mark if self._marks[kind]), default=Mark.NONE)


def _stop_in_child() -> None:
    """A forked child is another program: its steps are not those of its parent."""
    if Boundaries._active is not None:
        Boundaries._active.stop()


os.register_at_fork(after_in_child=_stop_in_child)


def step() -> None:
    """Mark the top of a training or inference loop: here its next step begins.

    Costs next to nothing when memplan neither records nor applies.
    """
    if Boundaries._active is not None:
        Boundaries._active._explicit_step()
