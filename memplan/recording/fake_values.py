"""Stand-ins for the values that fake tensors do not have.

A fake tensor has a shape and no contents. A program that prints its loss, counts
correct answers or checks that a gradient is finite still reads contents: it gets 1.0, 1
or the answer of a run without errors, and the recording notes the line. A stand-in that
would decide the size of a tensor ends the recording with an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

MOST_NOTES = 5
KNOWN_NUMBERS = 4096  # tensors up to this many elements keep known values
# What to do about a program that needs values, and about one that uses no GPU.
WITH_VALUES = 'record it with device="cpu"'
WITHOUT_GPU = 'use device="fake"'
_ROOT = str(Path(__file__).parents[1])


class RefusedError(SystemExit):
    """Ends the program; `except Exception` in it does not catch this."""

    def __init__(self, reason: str) -> None:
        super().__init__(125)
        self.reason = reason


class UnknownInt(int):
    """A stand-in for an unknown integer that the program read from a tensor.

    what: where it was read. Arithmetic with it gives unknown integers again.
    """

    what: str

    def __new__(cls, value: int, what: str) -> UnknownInt:
        made = super().__new__(cls, value)
        made.what = what
        return made


def _derived(name: str) -> Callable[[UnknownInt, Any], Any]:
    operation = getattr(int, name)

    def method(self: UnknownInt, *others: Any) -> Any:
        result = operation(self, *others)
        return UnknownInt(result, self.what) if type(result) is int else result

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownInt, _method, _derived(_method))
UnknownInt.__neg__ = _derived("__neg__")  # type: ignore[assignment, method-assign]


def unknown_in(values: Iterable[Any]) -> UnknownInt | None:
    """The first unknown number among the arguments of a call, or None."""
    for value in values:
        if type(value) is UnknownInt:
            return value
        if type(value) is slice:
            parts: Iterable[Any] = (value.start, value.stop, value.step)
        elif isinstance(value, tuple | list) and len(value) < 32:
            parts = value
        else:
            continue
        found = unknown_in(parts)
        if found is not None:
            return found
    return None


@dataclass
class StandIns:
    """The stand-in values so far, by the lines that read them.

    torch_folder: frames of files in it are not the program's.
    """

    torch_folder: str
    read: dict[str, str] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    refused: RefusedError | None = None

    def refuse(self, reason: str) -> RefusedError:
        """The error to raise if the recording cannot follow the program."""
        self.refused = self.refused or RefusedError(reason)
        return self.refused

    def here(self) -> str:
        """The current line of the program: "train.py:41"."""
        ours = (self.torch_folder, _ROOT, "<")
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(ours):
            frame = frame.f_back
        if frame is None:
            return "the program"
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

    def scalar(self, tensor: Any, torch: Any) -> Any:
        """A number or truth value for a tensor of one element; noted unless known."""
        known = getattr(tensor, "constant", None)
        if known is not None and known.numel() == 1:
            with torch._C.DisableTorchFunction():
                return known.flatten().tolist()[0]
        where = self.here()
        if tensor.dtype is torch.bool:
            truth = bool(getattr(tensor, "_memplan_truth", False))
            self.read.setdefault(where, f"taken as {truth}")
            return truth
        value = 0.0 if self._in_scaler() else 1.0
        if value:
            self.read.setdefault(where, "taken as 1")
        if tensor.dtype.is_floating_point:
            return value
        return value + 0j if tensor.dtype.is_complex else UnknownInt(1, where)

    def values(self, tensor: Any, torch: Any) -> Any:
        """The result of `tolist`: nested lists; a permutation is the identity."""
        known = getattr(tensor, "constant", None)
        if known is not None:
            return known.tolist()
        shape = tuple(tensor.shape)
        if not shape:
            return self.scalar(tensor, torch)
        if getattr(tensor, "_memplan_permutation", False):
            return list(range(shape[0]))
        self.read.setdefault(self.here(), "taken as 1 each")
        one: Any = {True: 1.0, False: 1}[tensor.dtype.is_floating_point]
        filled: Any = False if tensor.dtype is torch.bool else one
        for length in reversed(shape):
            filled = [filled] * length
        return filled

    def array(self, tensor: Any, torch: Any) -> Any:
        """The result of `numpy`: zeros, which take no memory until written."""
        import numpy as np

        known = getattr(tensor, "constant", None)
        if known is not None:
            return known.numpy()
        self.read.setdefault(self.here(), "taken as zeros")
        name = str(tensor.dtype).removeprefix("torch.")
        name = {"bfloat16": "float32"}.get(name, name)
        return np.zeros(tuple(tensor.shape), dtype=getattr(np, name, np.float32))

    def _in_scaler(self) -> bool:
        """Whether torch's gradient scaler asks; it gets "no overflow"."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(12):
            if frame is None:
                return False
            if frame.f_code.co_filename.endswith("grad_scaler.py"):
                return True
            frame = frame.f_back
        return False

    def notes(self) -> list[str]:
        """Notes for the end of the recording, a line each."""
        lines = [f"{where}, {how}" for where, how in list(self.read.items())]
        more = len(lines) - MOST_NOTES
        text = "; ".join(lines[:MOST_NOTES])
        text += f"; and {more} more" if more > 0 else ""
        found = [f"the program read values that fake tensors do not have: {text}"]
        return (found if lines else []) + list(self.others)
