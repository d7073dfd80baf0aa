"""What stands in for the values that fake tensors do not have.

A fake tensor has a shape and no contents. A program that prints its loss, counts what
it got right or asks whether a gradient is finite reads contents all the same: it gets
1.0, 1 or the answer of a run in which all goes well, and the line is noted. A number
that then decides how large a tensor is cannot be made up: that is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

MOST_TOLD = 5  # notes
KNOWN_NUMBERS = 4096  # tensors of up to as many elements keep values that are known
_ROOT = str(Path(__file__).parents[1])


class RefusedError(SystemExit):
    """Ends the program, which `except Exception` in it does not stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(125)
        self.reason = reason


class UnknownInt(int):
    """An integer that stands for one that was read from a tensor, and is not known.

    what: where it was read. Sums, products and the like of it are not known either.
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
    """The first number among the arguments of a call that is not known, or None."""
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
    """The values made up so far, by the lines that read them.

    torch_folder: frames of files in it are not the program's. truths: of boolean
    tensors, what they hold where all goes well: isfinite yes, isnan no.
    """

    torch_folder: str
    read: dict[str, str] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    refused: RefusedError | None = None

    def refuse(self, reason: str) -> RefusedError:
        """What to raise where the program cannot be followed, once for all."""
        self.refused = self.refused or RefusedError(reason)
        return self.refused

    def here(self) -> str:
        """The program's line that is running: "train.py:41"."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return "the program"
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

    def _is_ours(self, file: str) -> bool:
        return file.startswith((self.torch_folder, _ROOT, "<"))

    def scalar(self, tensor: Any, torch: Any) -> Any:
        """A number, or a truth, for a tensor of one element; noted where it is not
        known: constants are."""
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
        """What `tolist` gives: nested lists; a permutation is the identity."""
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
        """What `numpy` gives: zeros, which take up no memory until they are written."""
        import numpy as np

        known = getattr(tensor, "constant", None)
        if known is not None:
            return known.numpy()
        self.read.setdefault(self.here(), "taken as zeros")
        name = str(tensor.dtype).removeprefix("torch.")
        name = {"bfloat16": "float32"}.get(name, name)
        return np.zeros(tuple(tensor.shape), dtype=getattr(np, name, np.float32))

    def _in_scaler(self) -> bool:
        """Whether torch's own gradient scaler asks: nothing overflowed."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(12):
            if frame is None:
                return False
            if frame.f_code.co_filename.endswith("grad_scaler.py"):
                return True
            frame = frame.f_back
        return False

    def notes(self) -> list[str]:
        """What to tell of it at the end, a line each."""
        lines = [f"{where}, {how}" for where, how in list(self.read.items())]
        more = len(lines) - MOST_TOLD
        told = "; ".join(lines[:MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")
        found = [f"values that fake tensors do not have were read at {told}"]
        return (found if lines else []) + list(self.others)
