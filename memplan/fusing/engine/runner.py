"""Steps run one after another: tapes of kernels, and calls of torch between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]


@dataclass(slots=True)
class Native:
    """A kernel and its arguments.

    function: its address. call: a ctypes structure. given: fields of it that are
    pointers to values which torch owns, to be filled in before it runs. keep: what
    else the call points into.
    """

    function: int
    call: Any
    given: dict[str, str] = field(default_factory=dict)
    keep: tuple[Any, ...] = ()


@dataclass(slots=True)
class Call:
    """A function of the values, run by Python; its result is the value `name`, or
    nothing where that is empty."""

    name: str
    run: Callable[[Values], Any]


Step = Native | Call


class _Entry(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("call", ctypes.c_void_p))


class _Tape:
    """Kernels that run one after another without Python between them."""

    def __init__(self, steps: list[Native], play: Any, threads: int) -> None:
        self._steps, self._play, self._threads = steps, play, threads
        self._entries = (_Entry * len(steps))(
            *(_Entry(step.function, ctypes.addressof(step.call)) for step in steps)
        )
        self._given = [
            (step.call, name, value)
            for step in steps
            for name, value in step.given.items()
        ]

    def run(self, values: Values, held: list[Any], convert: Any) -> None:
        for call, name, value in self._given:
            tensor = convert(values[value])
            held.append(tensor)
            setattr(call, name, tensor.data_ptr())
        self._play(self._entries, len(self._entries), self._threads)


class Runner:
    """Steps bound to one arena; one thread runs it at a time.

    views: of values in the arena, as tensors. convert: a tensor laid out as kernels
    want it. play: the library's function that runs a tape.
    """

    def __init__(
        self,
        steps: list[Step],
        arena: Any,
        views: Values,
        convert: Callable[[Any], Any],
        play: Any,
        threads: int,
    ) -> None:
        self.arena, self.views, self._convert = arena, views, convert
        self._parts: list[_Tape | Call] = []
        run: list[Native] = []
        for step in steps:
            if isinstance(step, Native):
                run.append(step)
                continue
            if run:
                self._parts.append(_Tape(run, play, threads))
            self._parts.append(step)
            run = []
        if run:
            self._parts.append(_Tape(run, play, threads))

    def run(self, inputs: Values) -> Values:
        """All values that are left at the end, those in the arena among them."""
        values = dict(self.views)
        values.update(inputs)
        held: list[Any] = []  # what kernels read stays until they have run
        for index, part in enumerate(self._parts):
            if isinstance(part, Call):
                result = part.run(values)
                if part.name:
                    values[part.name] = result
                for name in self._last.get(index, ()):
                    values.pop(name, None)
            else:
                part.run(values, held, self._convert)
                held.clear()
        return values
