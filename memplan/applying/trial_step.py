"""Some steps of a program, with or without units computed again, and what they compute.

Run as `python -m memplan.applying.trial_step ORDER`, a JSON object with the fields of
`Order`. Generators are seeded first, so that two runs of a program that seeds none are
alike. After each backward pass of the program's thread it notes digests of the loss, of
all gradients, of all buffers of the modules that were called, and of the generators'
states; they go to `result` as JSON, and the trace of the run to `trace`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from memplan.applying.recompute import Recompute
from memplan.core.planfile import read_plan
from memplan.files import write_bytes
from memplan.native import _alloc
from memplan.recording.activations import CallWrapper, is_transformed
from memplan.recording.boundary import named_parts
from memplan.recording.options import RecordOptions
from memplan.recording.record import Recording
from memplan.recording.sites import in_backward
from memplan.recording.target import Target, run

Digests = dict[str, str]
_GONE = "gone "  # before the number of a module that is no more


def is_gone(name: str) -> bool:
    """Whether a name of Digests stands for an outermost module that is no more."""
    return name.startswith(_GONE)


@dataclass(frozen=True)
class Order:
    """plan: file; units: those to compute again, indexes into the plan's. device,
    steps: as for `record`. script, arguments, is_module: the program."""

    plan: str
    units: tuple[int, ...]
    device: str
    steps: int
    result: str
    trace: str
    script: str
    arguments: tuple[str, ...]
    is_module: bool

    def encode(self) -> str:
        """As one word of a command line."""
        return json.dumps(asdict(self))


class Watched:
    """What each backward pass computed."""

    def __init__(self) -> None:
        self.passes: list[Digests] = []
        # Weak references: what the program lets go is not to live on.
        self._roots: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id, which Python may reuse
        self._inside = False
        self._wrapper = CallWrapper(self._call)

    def start(self) -> contextlib.ExitStack:
        """Begin; within what is returned, backward passes are seen."""
        import torch

        self._wrapper.start()
        backward = torch.autograd.backward

        def watched(tensors: Any, *args: Any, **kwargs: Any) -> None:
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            backward(tensors, *args, **kwargs)
            self._note(given)

        gradient = torch.autograd.grad

        def graded(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            given = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            result = gradient(outputs, *args, **kwargs)
            self._note([*given, *(each for each in result if each is not None)])
            return result

        stack = contextlib.ExitStack()
        for name, function in (("backward", watched), ("grad", graded)):
            stack.enter_context(mock.patch.object(torch.autograd, name, function))
        return stack

    def _call(
        self, call: Callable[..., Any], module: Any, args: Any, kwargs: Any
    ) -> Any:
        if self._inside or in_backward():
            return call(module, *args, **kwargs)
        number = self._numbers.get(id(module))
        if number is None or self._roots[number]() is not module:
            self._numbers[id(module)] = len(self._roots)
            self._roots.append(weakref.ref(module))
        self._inside = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside = False

    def _note(self, losses: list[Any]) -> None:
        import torch

        # A compiler calls these, too, with tensors that hold nothing.
        compiling = torch._guards.TracingContext.try_get() is not None
        if in_backward() or compiling or is_transformed():
            return
        _alloc.interrupt()
        try:
            found = {f"loss {i}": _digest(each) for i, each in enumerate(losses)}
            for number, ref in enumerate(self._roots):
                if (root := ref()) is None:
                    found[f"{_GONE}{number}"] = ""
                    continue
                for path, part in named_parts(root):
                    at = f"{number}:{path}."
                    for name, value in part._parameters.items():
                        if value is not None and value.grad is not None:
                            found[f"gradient {at}{name}"] = _digest(value.grad)
                    for name, value in part._buffers.items():
                        if value is not None:
                            found[f"buffer {at}{name}"] = _digest(value)
            found["torch's generator"] = _digest(torch.get_rng_state())
            found["Python's generator"] = _hash(repr(random.getstate()).encode())
            state = np.random.get_state(legacy=True)
            found["numpy's generator"] = _hash(repr(state).encode())
            if torch.cuda.is_initialized():
                for i in range(torch.cuda.device_count()):
                    found[f"generator of GPU {i}"] = _digest(
                        torch.cuda.get_rng_state(i)
                    )
        finally:
            _alloc.resume()
        self.passes.append(found)


def _digest(tensor: Any) -> str:
    import torch

    with torch.no_grad():
        value = tensor.detach()
        if value.layout is not torch.strided:
            value = value.to_dense()
        plain = value.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if not plain.numel():
            return ""
        plain = plain.view(torch.uint8)
        return _hash(plain.numpy().tobytes())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def main(text: str) -> int:
    """Run an Order; the program's exit code."""
    import torch

    order = Order(**json.loads(text))
    part = read_plan(order.plan).recompute
    units = () if part is None else tuple(part.units[i] for i in order.units)
    target = Target(order.script, tuple(order.arguments), order.is_module)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    fake = order.device.startswith("fake")
    options = RecordOptions(
        device=order.device,
        steps=order.steps,
        then_exit=True,
        argv=target.command(),
        program=target.identity(),
        holders=False,
    )
    recording = Recording(Path(order.trace), options)
    watched = Watched()
    again = None
    if part is not None and units:
        again = Recompute(replace(part, units=units), order.plan, compare=0)
    recording.start()
    if again is not None:
        again.start()
    try:
        if fake:
            code = run(target)
        else:
            with watched.start():
                code = run(target)
    finally:
        bound = 0 if again is None else again.report().bound
        times = 0 if again is None else again.report().recomputations
        if again is not None:
            again.stop()
        recording.close()
    result = {"passes": watched.passes, "bound": bound, "recomputations": times}
    write_bytes(order.result, json.dumps(result).encode())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
