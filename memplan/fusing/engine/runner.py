"""Steps run one after another: tapes of kernels, and calls of torch between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Values = dict[str, Any]


class Given(NamedTuple):
    """A pointer, field of a ctypes structure, to be set to where a value lies."""

    structure: Any
    field: str
    value: str


@dataclass(slots=True)
class Native:
    """A kernel and its arguments.

    function: its address. call: a ctypes structure. given: pointers to values which
    torch owns, to be filled in before it runs. keep: what else the call points into.
    """

    function: int
    call: Any
    given: list[Given] = field(default_factory=list)
    keep: tuple[Any, ...] = ()


@dataclass(slots=True)
class Call:
    """A function of the values, run by Python; its result is the value `name`, or
    nothing where that is empty."""

    name: str
    run: Callable[[Values], Any]


Step = Native | Call


class Layout(Protocol):
    """Where values lie, and how kernels read those that lie elsewhere."""

    def views(self) -> Values: ...

    def convert(self, tensor: Any) -> Any: ...


class _Entry(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("call", ctypes.c_void_p))


class _Tape:
    """Kernels that run one after another without Python between them."""

    def __init__(self, steps: list[Native], play: Any, threads: int) -> None:
        self._steps, self._play, self._threads = steps, play, threads
        self._entries = (_Entry * len(steps))(
            *(_Entry(step.function, ctypes.addressof(step.call)) for step in steps)
        )
        self._given = [given for step in steps for given in step.given]

    def run(self, values: Values, convert: Callable[[Any], Any]) -> None:
        held = []  # what kernels read stays until they have run
        for structure, field_, value in self._given:
            tensor = values[value]
            if field_ != "output":  # that lies as it is to lie
                tensor = convert(tensor)
            held.append(tensor)
            setattr(structure, field_, tensor.data_ptr())
        self._play(self._entries, len(self._entries), self._threads)


@dataclass(slots=True)
class _Part:
    """A tape or a call, and the values that are not wanted any more behind it."""

    run: _Tape | Call
    forget: list[str] = field(default_factory=list)


class Runner:
    """Steps bound to one arena; one thread runs it at a time.

    steps: of every node, and the values that nothing behind it takes. memory: the
    arena. layout: what says where values lie in it, and lays out others as kernels want
    them. play: the library's function that runs a tape.
    """

    def __init__(
        self,
        steps: list[tuple[list[Step], tuple[str, ...]]],
        memory: Any,
        layout: Layout,
        play: Any,
        threads: int,
    ) -> None:
        self._memory, self._convert = memory, layout.convert
        self.storage = memory.untyped_storage().data_ptr()
        self._views = layout.views()
        self._parts: list[_Part] = []
        run: list[Native] = []
        forget: list[str] = []

        def close() -> None:
            if run:
                self._parts.append(_Part(_Tape(list(run), play, threads)))
            if self._parts:
                self._parts[-1].forget.extend(forget)
            run.clear()
            forget.clear()

        for taken, last in steps:
            for step in taken:
                if isinstance(step, Native):
                    run.append(step)
                else:
                    close()
                    self._parts.append(_Part(step))
            forget.extend(last)
            if not run:
                close()
        close()

    def run(
        self, inputs: Values, look: Callable[[Values], None] | None = None
    ) -> Values:
        """All values that are wanted at the end, and those in the arena until the next
        run. look: is shown the values that are there on the way."""
        values = {**self._views, **inputs}
        for part in self._parts:
            step = part.run
            if isinstance(step, _Tape):
                step.run(values, self._convert)
            else:
                result = step.run(values)
                if step.name:
                    values[step.name] = result
            if look is not None:
                look(values)
            for name in part.forget:
                values.pop(name, None)
        return values
