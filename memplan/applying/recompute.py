"""Runs a program so that some modules compute their activations again.

A unit's forward call goes through `torch.utils.checkpoint`: autograd keeps its inputs
only, and the call is made again in the backward pass. Units may lie within units.
Modules, their attributes and their `state_dict` stay as they are. `second_call` keeps
what the second call finds the same.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from memplan.applying.arguments import Arguments
from memplan.applying.compared import compared
from memplan.applying.second_call import Again, Bound, Made
from memplan.core.plan import Plan
from memplan.core.recompute import Recomputation
from memplan.errors import InputError
from memplan.recording.activations import (
    Caller,
    CallWrapper,
    is_sequence,
    is_transformed,
    kind_of,
    obstacle_of,
    root_of,
)
from memplan.recording.boundary import named_parts

NO_LIMIT = sys.maxsize
COMPARED = 2  # calls of each unit whose values are compared with those of the second


@dataclass(frozen=True)
class RecomputeReport:
    """How often, and for how long in all, `units` were computed again: seconds of wall
    time of this process's threads. budget, predicted: the plan's, bytes; bound: units
    whose modules were found in the program. left_out: calls of units that were made
    only once, because they have hooks by then."""

    units: int
    bound: int
    left_out: int
    recomputations: int
    seconds: float
    budget: int
    predicted: int


class Recompute:
    """Computes the units of a plan again, from `start` to `stop`."""

    def __init__(self, part: Recomputation, name: str, compare: int = COMPARED) -> None:
        """name: of the plan, in messages. compare: how many calls of each unit."""
        self._part, self._name = part, name
        self._compare, self._compared = compare, Counter[Bound]()
        self._wrapper = CallWrapper(self._call)
        self._local = _Local()
        # By the id of a module, which Python may reuse: the module, and what it is.
        self._known: dict[int, tuple[Any, _Role | None]] = {}
        self._found = False  # a module with units
        self._counts = _Counts()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, after all else that watches modules."""
        if self._part.units:
            self._wrapper.start()

    def stop(self) -> None:
        """Make no more calls in this way; those that were made so are made again all
        the same."""
        self._wrapper.stop()

    def report(self) -> RecomputeReport:
        """How it went so far."""
        roles = [each for _, each in self._known.values() if each is not None]
        return RecomputeReport(
            len(self._part.units),
            sum(each.units for each in roles),
            self._counts.left_out,
            self._counts.times,
            self._counts.seconds,
            self._part.budget,
            self._part.predicted,
        )

    def _call(self, call: Caller, module: Any, args: Any, kwargs: Any) -> Any:
        local = self._local
        if not self._wrapper.running or is_transformed():
            return call(module, *args, **kwargs)
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            self._meet(module)
            known = self._known[id(module)]
        sequence, local.sequence = local.sequence, None
        try:
            if sequence is not None:
                return self._in_sequence(sequence, call, module, args, kwargs)
            return self._child(call, module, args, kwargs)
        finally:
            local.sequence = sequence

    def _in_sequence(
        self, running: _Running, call: Caller, module: Any, args: Any, kwargs: Any
    ) -> Any:
        """A child of a Sequential of which runs are computed again."""
        at, running.at = running.at, running.at + 1
        if at < running.done:  # the run's first call made this one, too
            return args[0]
        bound = None
        if sys.modules["torch"].is_grad_enabled():
            bound = running.sequence.longest(at, NO_LIMIT)
        if bound is None:
            return self._child(call, module, args, kwargs)
        running.done = bound.unit.last
        return self._run(running.sequence, bound, call, args[0])

    def _child(self, call: Caller, module: Any, args: Any, kwargs: Any) -> Any:
        """A child that is in no run: it may be a unit of its own, or a Sequential."""
        known = self._known.get(id(module))
        what = None if known is None or known[0]() is not module else known[1]
        if what is None or not sys.modules["torch"].is_grad_enabled():
            return call(module, *args, **kwargs)
        own = call
        if what.sequence is not None:
            own = functools.partial(self._through_sequence, call, what.sequence)
        if what.bound is None:
            return own(module, *args, **kwargs)
        return self._unit(what.bound, own, module, args, kwargs)

    def _through_sequence(
        self, call: Caller, sequence: _Sequence, module: Any, *args: Any, **kwargs: Any
    ) -> Any:
        before, self._local.sequence = self._local.sequence, _Running(sequence)
        try:
            return call(module, *args, **kwargs)
        finally:
            self._local.sequence = before

    def _run(self, sequence: _Sequence, bound: Bound, call: Caller, value: Any) -> Any:
        """A run of children as one unit; shorter ones lie within it."""
        first, last = bound.unit.first, bound.unit.last
        children = [ref() for ref in bound.children]

        def through(_: Any, value: Any) -> Any:
            at = first
            while at < last:
                inner = sequence.longest(at, last - at - (at == first))
                if inner is None or inner.unit.last > last:
                    value = self._child(call, children[at - first], (value,), {})
                    at += 1
                else:
                    value = self._run(sequence, inner, call, value)
                    at = inner.unit.last
            return value

        return self._unit(bound, through, children[0], (value,), {})

    def _unit(
        self, bound: Bound, call: Caller, module: Any, args: Any, kwargs: Any
    ) -> Any:
        """The call of a unit, of which autograd keeps the inputs only."""
        from torch.utils.checkpoint import checkpoint

        if any(obstacle_of(part) for part in bound.modules()):
            self._counts.leave_out()
            return call(module, *args, **kwargs)
        arguments = Arguments(args, kwargs)

        def forward(*values: Any) -> Any:
            if not arguments.fresh:
                given, named = arguments.again(values)
                return call(module, *given, **named)
            given, named = arguments.first()
            try:
                return call(module, *given, **named)
            finally:
                arguments.made()

        made = Made(bound, self._counts.add)
        with self._looked_at(bound) as look:
            return checkpoint(
                forward,
                *arguments.values,
                use_reentrant=False,
                preserve_rng_state=True,
                context_fn=lambda: (made.first(), Again(made)),
                **look,
            )

    def _looked_at(
        self, bound: Bound
    ) -> contextlib.AbstractContextManager[dict[str, str]]:
        """Around a call: the first ones of a unit are compared with the second."""
        if self._compared[bound] >= self._compare:
            return contextlib.nullcontext({})
        self._compared[bound] += 1
        return compared(bound.differs)

    def _meet(self, module: Any) -> None:
        """Find the units in a module that was not called before, and in its parts."""
        with self._lock:
            self._known[id(module)] = weakref.ref(module), None
            roots = self._part.roots
            planned = {unit.root for unit in self._part.units}
            if kind_of(module) not in {roots[i].kind for i in planned}:
                return
            found = root_of(module)
            if like := {i for i, root in enumerate(roots) if root == found}:
                # Models that are equal may change roles: each gets the units of all.
                self._bind(like, module)
                return
            plain = type(module).__module__.startswith("torch.")  # there may be many
            if not plain and not self._found:
                raise InputError(
                    f"{self._name} was made for another {found.kind}: modules, their "
                    "names or the shapes of their parameters differ; record the "
                    "program again"
                )

    def _bind(self, roots: set[int], module: Any) -> None:
        self._found |= any(unit.root in roots for unit in self._part.units)
        parts = dict(named_parts(module))
        for part in parts.values():
            known = self._known.get(id(part))
            if known is None or known[0]() is not part:
                self._known[id(part)] = weakref.ref(part), None
        for unit in self._part.units:
            if unit.root not in roots:
                continue
            part = parts.get(unit.path)
            children = [] if part is None else list(part._modules.values())
            if part is None or unit.last > len(children):
                raise InputError(
                    f"{self._name} names {unit.name}, which this {kind_of(module)} "
                    "lacks; record the program again"
                )
            own = children[unit.first : unit.last] if unit.last else [part]
            bound = Bound.of(unit, part, own)
            role = self._known[id(part)][1] or _Role()
            self._known[id(part)] = weakref.ref(part), role
            if not unit.last:
                role.bound = bound
                continue
            if not is_sequence(part):
                raise InputError(
                    f"{self._name} names {unit.name}, and that is no longer a plain "
                    "Sequential; record the program again"
                )
            role.sequence = role.sequence or _Sequence()
            role.sequence.runs.append(bound)


def recompute_of(plan: Plan, name: str) -> Recompute | None:
    """What computes the plan's units again; None for a plan without a budget."""
    return None if plan.recompute is None else Recompute(plan.recompute, name)


class _Local(threading.local):
    """Of a thread: the Sequential whose children are called next."""

    def __init__(self) -> None:
        self.sequence: _Running | None = None


@dataclass
class _Counts:
    times: int = 0
    left_out: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def leave_out(self) -> None:
        with self.lock:
            self.left_out += 1

    def add(self, seconds: float) -> None:
        with self.lock:
            self.times += 1
            self.seconds += seconds


@dataclass
class _Sequence:
    """A Sequential of which runs of children are computed again."""

    runs: list[Bound] = field(default_factory=list)

    def longest(self, first: int, most: int) -> Bound | None:
        """The longest run from child `first` on, of at most `most` children."""
        found = [
            run
            for run in self.runs
            if run.unit.first == first and run.unit.last - first <= most
        ]
        return max(found, key=lambda run: run.unit.last, default=None)


@dataclass
class _Role:
    """What a module is in a plan: a unit, a Sequential with runs, or both."""

    bound: Bound | None = None
    sequence: _Sequence | None = None

    @property
    def units(self) -> int:
        """How many units it stands for."""
        runs = 0 if self.sequence is None else len(self.sequence.runs)
        return runs + (self.bound is not None)


@dataclass
class _Running:
    """A call of a Sequential: the child to be called next, and the one up to which the
    calls are made."""

    sequence: _Sequence
    at: int = 0
    done: int = 0
