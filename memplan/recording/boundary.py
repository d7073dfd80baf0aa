"""Where a program's steps begin, as they happen.

Three signs, weakest first: the outermost module's forward call, an optimizer's
step, and `memplan.step()` in the program itself. The recorder notes them all; the
loader follows the kind its plan was made with.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

from memplan.errors import UsageError
from memplan.native import _alloc
from memplan.trace.steps import MAX_PERIOD
from memplan.trace.trace import Mark

Listener = Callable[[Mark], None]


class Boundaries:
    """Reports step boundaries to a listener, from `start` to `stop`.

    A process has at most one listener at a time.
    """

    _active: Boundaries | None = None

    def __init__(self, listener: Listener, kinds: Collection[Mark]) -> None:
        self._listener = listener
        self._kinds = frozenset(kinds)
        self._unhooks: dict[Mark, Callable[[], object]] = {}
        # The first optimizer to step and the first module called delimit the steps of
        # a thread; a second one (an adversary's, a metric's) does not.
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

            hook = _alloc.quietly(self._optimizer_stepped)
            handle = register_optimizer_step_post_hook(hook)
            self._unhooks[Mark.OPTIMIZER] = handle.remove
        if Mark.FORWARD in self._kinds:
            from torch.nn import Module

            # The program may replace the method while memplan watches it.
            watch = functools.partial(_alloc.watch_steps, Module._call_impl)
            watch(self._forward_called)
            self._unhooks[Mark.FORWARD] = functools.partial(watch, None)

    def stop(self) -> None:
        """Remove the hooks; does nothing when there are none."""
        if Boundaries._active is self:
            Boundaries._active = None
        for mark in list(self._unhooks):
            self._unhook(mark)

    def _unhook(self, mark: Mark) -> None:
        unhook = self._unhooks.pop(mark, None)
        if unhook is not None:
            unhook()

    def _optimizer_stepped(self, optimizer: object, *_: object) -> None:
        known: weakref.ref[Any] | None = getattr(self._sources, "optimizer", None)
        if known is None or known() is None:
            self._sources.optimizer = known = weakref.ref(optimizer)
        if known() is optimizer:
            # From now on the stronger sign is there; modules need not be watched.
            self._unhook(Mark.FORWARD)
            self._listener(Mark.OPTIMIZER)

    def _forward_called(self, module: Any) -> bool:
        """A module is called; returns whether this thread can skip its later calls.

        It can skip the parts of the module whose calls delimit its steps.
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
        """Whether the calling thread marks steps from now on.

        It does if it calls a module of the class that other threads call, or if those
        have stopped: a thread that only prepares images does not delimit their steps.
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


class StepCount:
    """Counts steps by the strongest kind of mark seen."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._marks = [0] * (max(Mark) + 1)  # by mark: its hash is Python's, and slow

    def add(self, mark: Mark) -> bool:
        """Count a mark; returns whether the limit of steps is reached."""
        self._marks[mark] += 1
        # An optimizer's mark ends a step; the others begin one.
        ended = self._marks[mark] - (mark is not Mark.OPTIMIZER)
        return self._limit is not None and mark is self.mark and ended >= self._limit

    @property
    def mark(self) -> Mark:
        """The strongest kind so far."""
        return max((kind for kind in Mark if self._marks[kind]), default=Mark.NONE)


def _stop_in_child() -> None:
    """A forked child's steps are not those of its parent."""
    if Boundaries._active is not None:
        Boundaries._active.stop()


os.register_at_fork(after_in_child=_stop_in_child)


def step() -> None:
    """Mark the top of a training or inference loop: here its next step begins.

    Costs next to nothing when memplan neither records nor applies.
    """
    if Boundaries._active is not None:
        Boundaries._active._explicit_step()


class ModuleSource:
    """The outermost module whose calls delimit the steps of one thread.

    It is the first one called, until another is called repeatedly without it: a module
    that runs once before the loop (a prompt encoder) is not the loop.
    """

    TIMES = 3
    MOST_RIVALS = 8

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        """changed: called when the source changes or is deleted."""
        self._changed = changed
        self._module: weakref.ref[Any] | None = None
        self._inside: set[int] = set()  # it and its parts, by id
        self._rivals: list[tuple[weakref.ref[Any], set[int], int]] = []

    def begins_step(self, module: Any) -> bool:
        """`module` is called; returns whether a step begins."""
        known = None if self._module is None else self._module()
        if known is None:
            self._choose(module, _parts(module))
            return True
        if known is module:
            self._rivals.clear()
            return True
        return id(module) not in self._inside and self._takes_over(module)

    def has_inside(self, module: Any) -> bool:
        """Whether it is part of the source, so that its calls begin no step."""
        return id(module) in self._inside

    def _choose(self, module: Any, inside: set[int]) -> None:
        self._changed()
        # Python may reuse the ids of deleted modules.
        self._module = weakref.ref(module, lambda _: self._changed())
        self._inside = inside
        self._rivals.clear()

    def _takes_over(self, module: Any) -> bool:
        """Count a call of another module; returns whether it becomes the source."""
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
    """The ids of a module and all its submodules."""
    return {id(part) for _, part in named_parts(module)}


def named_parts(module: Any) -> Iterator[tuple[str, Any]]:
    """A module and its submodules, each once, with names, as `named_modules` yields
    them; the program's class may override `named_modules` and `modules`."""
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


SETTLED_STEPS = 32  # in a row, each with the requests of an earlier one
SETTLED_FAKE_STEPS = 3  # likewise under fake tensors, where nothing varies
SETTLED_EVENTS = 100_000  # a shorter recording goes on
MOST_EVENTS = 2_000_000  # a longer one stops, settled or not: 80 MB of journal


class Settling:
    """Tells when a recording has seen enough repeated steps, from a digest of each."""

    def __init__(self, steps: int = SETTLED_STEPS) -> None:
        """steps: number of equal steps in a row."""
        self._least = steps
        self._mark = Mark.NONE
        self._last: deque[int] = deque(maxlen=MAX_PERIOD)
        self._alike = [0] * MAX_PERIOD  # steps in a row, by period

    def add(self, mark: Mark, digest: int) -> None:
        """A step ended or began. digest: of this thread's requests since its last
        mark, 0 for none.

        Only the strongest kind of mark counts, as everywhere.
        """
        if mark < self._mark:
            return
        if mark > self._mark:
            self._mark = mark
            self._last.clear()
            self._alike = [0] * MAX_PERIOD
        for i, earlier in enumerate(self._last):
            same = digest != 0 and digest == earlier
            self._alike[i] = self._alike[i] + 1 if same else 0
        self._last.appendleft(digest)

    @property
    def settled(self) -> bool:
        """Whether enough steps were equal, with some period."""
        return max(self._alike) >= self._least


def interrupt() -> None:
    """Exclude requests from recording and planning until `resume`; calls nest.

    Requests of any thread between the two go to torch's own allocator
    (profile-guided memory optimization, section 4.3). Without a recording or a plan in
    force this does nothing, so a program can keep the calls.
    """
    _alloc.interrupt()


def resume() -> None:
    """End the latest `interrupt`. Raises UsageError if there was none."""
    if not _alloc.resume():
        raise UsageError("memplan.resume() without a memplan.interrupt() before it")


@contextlib.contextmanager
def unplanned() -> Iterator[None]:
    """Exclude a block from recording and planning.

    `with memplan.unplanned(): evaluate()`
    """
    interrupt()
    try:
        yield
    finally:
        resume()
