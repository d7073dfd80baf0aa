"""Tensors in reference cycles, which Python's collector frees, and nothing earlier.

Each collection that frees something is noted with its times: what is freed meanwhile by
its thread was in a cycle, or held by one. Before a collection its objects are looked
through for the cycle itself, as the collector does it: what is referred to from within
alone is garbage. That takes time, and stops once it has taken `_MOST_SECONDS` of the
processor's.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
import types
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from memplan.recording.references import (
    generalized,
    is_tensor,
    kind_name,
    module_of,
    parts_of,
)
from memplan.recording.source import Lines
from memplan.trace.holders import Collection

_MOST_SECONDS = 0.5
MOST_OBJECTS = 20_000  # of a collection that is looked through
MOST_COLLECTIONS = 10_000
_TRIED = 50  # objects that are tried as a cycle's begin
_ROUND = 1000  # objects that are looked at from there


class Cycles:
    """Notes collections from `start` to `stop`."""

    def __init__(self, events: Callable[[], int]) -> None:
        """events: how many are recorded; a collection without any is not noted."""
        self._events = events
        self._process = os.getpid()  # a forked child is not recorded
        self._before = 0
        self._found: list[tuple[int, int, int, str]] = []
        self._began = 0
        self._cycle = ""
        self._left = _MOST_SECONDS
        self.fault = ""  # why it stopped looking through objects

    def start(self) -> None:
        """Begin."""
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """End."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def result(self, lines: Lines, since_ns: int = 0) -> tuple[Collection, ...]:
        """What was noted. since_ns: monotonic ns where the trace's clock reads 0."""
        return tuple(
            Collection(
                begin - since_ns, end - since_ns, thread, cycle, place_of(cycle, lines)
            )
            for begin, end, thread, cycle in self._found
            if begin >= since_ns
        )

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if os.getpid() != self._process:
            return
        if phase == "start":
            begin = time.thread_time()
            self._cycle = ""
            try:
                if self._left > 0:
                    self._cycle = self._look(info["generation"])
            except Exception as error:  # an object of the program's; told in the end
                self._left, self.fault = 0, f"{type(error).__name__}: {error}"
            self._left -= time.thread_time() - begin
            self._before, self._began = self._events(), time.monotonic_ns()
        elif self._events() > self._before and len(self._found) < MOST_COLLECTIONS:
            thread, end = threading.get_native_id(), time.monotonic_ns()
            self._found.append((self._began, end, thread, self._cycle))

    def _look(self, generation: int) -> str:
        objects = gc.get_objects(generation=0)  # a list that is not in itself
        if generation > 0:  # the oldest are too many
            objects += gc.get_objects(generation=1)
        if len(objects) > MOST_OBJECTS or not any(map(is_tensor, objects)):
            return ""
        return cycle_of(unreachable(objects))


def place_of(cycle: str, lines: Lines) -> str:
    """The line that closes a cycle, where only one can."""
    names = re.findall(r"\.(\w+)", cycle)
    places = lines.assigning(names[-1]) or lines.adding(names[-1]) if names else ()
    return places[0] if len(places) == 1 else ""


def unreachable(objects: list[Any]) -> list[Any]:
    """Those that only others of them refer to, directly or not.

    The list must be the caller's only reference to its objects.
    """
    probe: list[Any] = [[]]
    own = [sys.getrefcount(each) for each in probe].pop()
    counts = {id(each): sys.getrefcount(each) - own for each in objects}
    for each in objects:
        for inner in gc.get_referents(each):
            if id(inner) in counts:
                counts[id(inner)] -= 1
    waiting = [each for each in objects if counts[id(each)] > 0]
    reached = {id(each) for each in waiting}
    while waiting:
        for inner in gc.get_referents(waiting.pop()):
            if id(inner) in counts and id(inner) not in reached:
                reached.add(id(inner))
                waiting.append(inner)
    garbage = counts.keys() - reached
    return [each for each in objects if id(each) in garbage]


def cycle_of(garbage: list[Any]) -> str:
    """A cycle among objects that holds a tensor, as "Node.children[*].parent"; "" if
    there is no tensor, or no cycle that has a name."""
    if not any(map(is_tensor, garbage)):
        return ""
    inside = {id(each) for each in garbage}
    for begin in sorted(_leading_to_tensors(garbage), key=_rank)[:_TRIED]:
        edges = _cycle_through(begin, inside)
        if edges:
            return _named(begin) + generalized(edges)
    return ""


def _leading_to_tensors(garbage: list[Any]) -> list[Any]:
    """The objects from which tensors are reached."""
    before: dict[int, list[Any]] = defaultdict(list)
    for each in garbage:
        for inner in gc.get_referents(each):
            before[id(inner)].append(each)
    waiting = [each for each in garbage if is_tensor(each)]
    found = {id(each) for each in waiting}
    while waiting:
        for each in before[id(waiting.pop())]:
            if id(each) not in found:
                found.add(id(each))
                waiting.append(each)
    return [each for each in garbage if id(each) in found]


def _cycle_through(begin: Any, inside: set[int]) -> str:
    """The edges of a shortest path from an object back to it; "" if there is none, or
    no tensor is reached."""
    edges, tensors, seen = "", False, {id(begin)}
    waiting: deque[tuple[Any, str]] = deque([(begin, "")])
    while waiting and len(seen) < _ROUND:
        value, before = waiting.popleft()
        for edge, inner in parts_of(value):
            if inner is begin and not edges:
                edges = before + edge
            tensors = tensors or is_tensor(inner)
            if id(inner) in inside and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append((inner, before + edge))
    return edges if tensors else ""


def _rank(value: object) -> int:
    """Less for what a reader knows better."""
    kind = type(value)
    if issubclass(kind, type) or is_tensor(value):
        return 9
    if module_of(kind) not in ("builtins", "torch"):
        return 0
    if kind is types.FunctionType:
        return 1
    return 2 if kind is types.FrameType else 3


def _named(value: object) -> str:
    if type(value) is types.FunctionType:
        return str(value.__qualname__)
    if type(value) is types.FrameType:
        return f"{value.f_code.co_name}()"
    return kind_name(type(value))
