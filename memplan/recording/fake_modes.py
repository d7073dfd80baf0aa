"""The modes a program runs under when it is recorded without memory.

Three, each around the next: one that sees torch's functions as the program calls them,
and answers for values and devices that are not there; one that sees the operators they
come to, and whose storages these make; and torch's own FakeTensorMode, which computes
shapes in the place of contents.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from memplan.recording.caching_allocator import DeviceFullError
from memplan.recording.fake_devices import Devices
from memplan.recording.fake_ledger import FakeLedger
from memplan.recording.fake_shapes import at_most
from memplan.recording.fake_values import KNOWN_NUMBERS, StandIns, unknown_in
from memplan.recording.fake_workspaces import NONE, workspace

_TRUE, _FALSE = ("isfinite", "isreal"), ("isnan", "isinf", "isneginf", "isposinf")
_KEEPING = ("all", "any", "logical_and", "logical_or", "clone", "detach", "reshape")
_NEGATING = ("logical_not", "bitwise_not", "__invert__")
_COMPARING = ("equal", "allclose", "is_nonzero")
_DRAWN = ("randint", "randperm")
_NUMBERS = ("item", "__float__", "__int__", "__index__", "__bool__", "__complex__")


class Watch:
    """What the modes share: the ledger, the stand-ins, the devices."""

    def __init__(
        self, torch: Any, ledger: FakeLedger, values: StandIns, devices: Devices
    ) -> None:
        self.torch, self.ledger = torch, ledger
        self.values, self.devices = values, devices

    def call(self, mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One of torch's functions, as the program calls it."""
        name = getattr(func, "__name__", "")
        if func is self.torch.Tensor.backward:
            with mode:  # what it recomputes is the program's, too
                return self._backward(*args, **kwargs)
        if name in _READING and args and self._is_fake(args[0]):
            return self._read(name, args)
        if name in _COMPARING:
            self.values.read.setdefault(self.values.here(), "taken as False")
            return False
        unknown = unknown_in(args) or (unknown_in(kwargs.values()) if kwargs else None)
        if unknown is not None and name in _SIZED.split():
            raise self.values.refuse(
                f"{self.values.here()}: how large a tensor is there depends on a value "
                f"read at {unknown.what}, which a fake tensor does not have; record "
                "this program with --device cpu, or give it a fixed size"
            )
        if name in _DRAWN and (known := self._drawn(func, args, kwargs)) is not None:
            return known
        if self.devices.simulated:
            result = self.devices.call(func, name, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name == "randperm":
            result._memplan_permutation = True
        elif name in _TRUTHS:
            self._mark_truth(name, args, result)
        return result

    def _backward(
        self,
        tensor: Any,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        graph = retain_graph, create_graph
        self.torch.autograd.backward(tensor, gradient, *graph, inputs=inputs)

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A few random integers, such as the lengths of sentences, as they really come.

        With their values known, so are the sizes that depend on them. None for many.
        """
        from torch.utils._python_dispatch import _disable_current_modes

        if kwargs.get("out") is not None or kwargs.get("device") is not None:
            return None
        shape = kwargs.get("size", args[-1] if args else ())
        wanted = math.prod(shape) if isinstance(shape, tuple | list) else 0
        if func is self.torch.randperm:
            wanted = int(args[0]) if args else 0
        if not 0 < wanted <= KNOWN_NUMBERS:
            return None
        with _disable_current_modes():
            real = func(*args, **kwargs)
            values, dtype = real.tolist(), real.dtype
        return self.torch.tensor(values, dtype=dtype)

    def _is_fake(self, value: object) -> bool:
        return hasattr(value, "fake_mode")

    def _read(self, name: str, args: Any) -> Any:
        tensor = args[0]
        with self.torch._C.DisableTorchFunction():
            if name == "tolist":
                return self.values.values(tensor, self.torch)
            if name in ("numpy", "__array__"):
                return self.values.array(tensor, self.torch)
            if name == "__format__":
                if tensor.dim():
                    return repr(tensor)
                return format(self.values.scalar(tensor, self.torch), *args[1:])
            value = self.values.scalar(tensor, self.torch)
        convert = {
            "__float__": float,
            "__int__": int,
            "__bool__": bool,
            "__complex__": complex,
            "__index__": int,
        }
        return convert[name](value) if name in convert else value

    def _mark_truth(self, name: str, args: Any, result: Any) -> None:
        truth: bool | None = None
        if name in _TRUE or name in _FALSE:
            truth = name in _TRUE
        elif args:
            known = [getattr(arg, "_memplan_truth", None) for arg in args]
            truth = next((value for value in known if value is not None), None)
            if truth is not None and name in _NEGATING:
                truth = not truth
        if truth is not None and self._is_fake(result):
            result._memplan_truth = truth

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One operator, and the storages it made."""
        with self.torch._C.DisableTorchFunction():
            tensors = list(_tensors(args, self.torch.Tensor))
            tensors += _tensors(kwargs.values(), self.torch.Tensor)
            if func is self.torch.ops.aten._local_scalar_dense.default:
                value = self.values.scalar(tensors[0], self.torch)
                return int(value) if type(value) not in (bool, float) else value
            result = self._run(func, args, kwargs)
            storages = map(_storage, tensors)
            on_gpu = self.devices.place_of(any(map(self.ledger.on_gpu, storages)))
            # A view of a real tensor, say a file's, is nothing that was allocated.
            given = func.is_view and not all(map(self._is_fake, tensors))
            self._made(func, args, result, on_gpu, given)
            return result

    def _made(
        self, func: Any, args: Any, result: Any, on_gpu: bool, given: bool
    ) -> None:
        """Note the storages of an operator's results, and its own in between."""
        held = NONE if on_gpu else workspace(self.torch, func, args, result)
        results = result if isinstance(result, tuple | list) else (result,)
        for i, one in enumerate(results):
            made = list(_tensors((one,), self.torch.Tensor))
            if made and i < len(held.before):
                self.ledger.scratch(held.before[i])
            for tensor in made:
                self._note(_storage(tensor), on_gpu, given)
            if made and i < len(held.after):
                self.ledger.scratch(held.after[i])

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
        )

        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            here = self.values.here()
            result = at_most(self.torch, func, args, kwargs)
            if result is None:
                raise self.values.refuse(
                    f"{here}: the shape of what {func.name().split('::')[-1]} makes "
                    "depends on values, which fake tensors do not have; record this "
                    "program with --device cpu"
                ) from error
            note = f"{here}: how much is selected depends on values; taken as all"
            self.values.others.setdefault(note)
            return result

    def _note(self, storage: Any, on_gpu: bool, given: bool) -> None:
        try:
            self.ledger.note(storage, on_gpu, given)
        except DeviceFullError as full:
            capacity = self.ledger.gpu.capacity if self.ledger.gpu else 0
            raise self.torch.OutOfMemoryError(
                f"CUDA out of memory (simulated): tried to allocate {full.requested} "
                f"bytes on a device of {capacity}"
            ) from None


_READING = (*_NUMBERS, "tolist", "numpy", "__array__", "__format__")
_TRUTHS = (*_TRUE, *_FALSE, *_KEEPING, *_NEGATING)
_SIZED = (
    "arange empty full linspace new_empty new_full new_ones new_zeros ones rand "
    "randint randn randperm zeros expand narrow repeat repeat_interleave reshape "
    "resize_ split tile unfold view __getitem__ pad interpolate one_hot topk eye "
    "broadcast_to chunk normal tril_indices triu_indices "
)


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()


def _tensors(values: Any, kind: Any) -> Iterator[Any]:
    """The tensors among an operator's arguments or results, in lists, too."""
    for value in values:
        if isinstance(value, kind):
            if value.layout is not None and not value.is_sparse:
                yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value, kind)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Run a block under the three modes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Fake(FakeTensorMode):  # type: ignore[misc]
        avoid_device_init = True  # whatever the simulated device says

    class Operators(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return watch.dispatch(func, args, kwargs or {})

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return watch.call(self, func, args, kwargs or {})

    with Fake(allow_non_fake_inputs=True), Operators(), Functions():
        yield
