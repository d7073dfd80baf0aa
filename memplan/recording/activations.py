"""Calls of modules, and the tensors that autograd saves in them, as a program runs.

Every module call passes through a wrapper of `torch.nn.Module._call_impl`. The tensors
saved for the backward pass are seen by hooks that change nothing, from the begin of an
outermost call to its end.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from memplan.core.recompute import Root
from memplan.recording.boundary import named_parts
from memplan.recording.dropped import Dropped, is_plain
from memplan.recording.held import tensors_in
from memplan.recording.sites import in_backward
from memplan.trace.calls import AGAIN, NO_CALL, Calls, Flag, Module

MOST_CALLS = 1 << 17  # later ones are not noted
_HOOKED = "it has forward hooks, which would run twice"
_COMPILED = "it is compiled"
_SCRIPTED = "it is TorchScript, which ends no call early"
_CHANGES = "it changes a tensor of its own, which is no buffer, in place"
_DROPPED = 5  # of what is noted of a saved tensor: when autograd alone holds it
# Bytes of a buffer that is looked at before and after a call, and of a tensor among
# attributes that is kept from the first call to the second.
SMALL = 1 << 20

Caller = Callable[..., Any]


class CallWrapper:
    """Passes all module calls through `wrapper(call, module, args, kwargs)`.

    call: torch's own way to call a module, `call(module, *args, **kwargs)`.
    """

    def __init__(self, wrapper: Callable[[Caller, Any, Any, Any], Any]) -> None:
        self._wrapper = wrapper
        self._before: Caller | None = None
        self._ours: Caller | None = None

    @property
    def running(self) -> bool:
        """Whether it has started, and not stopped."""
        return self._ours is not None

    def start(self) -> None:
        """Begin; anything else that watches `_call_impl` must begin before."""
        import torch

        before, wrapper = torch.nn.Module._call_impl, self._wrapper

        def _call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(before, module, args, kwargs)

        self._before, self._ours = before, _call_impl
        torch.nn.Module._call_impl = _call_impl

    def stop(self) -> None:
        """End, unless the program has put its own method in the place since."""
        import torch

        if self._ours is not None and torch.nn.Module._call_impl is self._ours:
            torch.nn.Module._call_impl = self._before
        self._ours = None


def is_transformed() -> bool:
    """Whether a compiler, a tracer or a transform of torch.func runs, which allow no
    hooks."""
    torch = sys.modules["torch"]
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    traced = torch._C._get_tracing_state() is not None
    return traced or bool(torch.compiler.is_compiling())


def root_of(module: Any) -> Root:
    """What identifies an outermost module: see `Root`."""
    text = hashlib.sha256()
    for name, part in named_parts(module):
        shapes = [
            (key, tuple(each.shape))
            for key, each in part._parameters.items()
            if each is not None and not _is_lazy(each)
        ]
        text.update(f"{name}\0{kind_of(part)}\0{shapes}\n".encode())
    return Root(kind_of(module), text.hexdigest())


def kind_of(module: Any) -> str:
    """The name of its class."""
    return type(module).__qualname__


def is_sequence(module: Any) -> bool:
    """Whether it calls its children one after the other, and does nothing else."""
    sequential = sys.modules["torch"].nn.Sequential
    if not isinstance(module, sequential) or "forward" in vars(module):
        return False
    return type(module).forward is sequential.forward


def _is_lazy(parameter: Any) -> bool:
    return bool(getattr(type(parameter), "cls_to_become", None))


def obstacle_of(module: Any) -> str:
    """Why a call of the module cannot be made again; "" if nothing shows."""
    every = sys.modules["torch"].nn.modules.module
    hooked = module._forward_hooks or module._forward_pre_hooks
    if hooked or every._global_forward_hooks or every._global_forward_pre_hooks:
        return _HOOKED
    if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
        return _COMPILED
    if isinstance(module, sys.modules["torch"].jit.ScriptModule):
        return _SCRIPTED
    return ""


class _Local(threading.local):
    """Of a thread: its open calls; whether autocast was on when the last began."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.autocast = False


class Activations:
    """Notes calls and saved tensors, from `start` to `stop`."""

    def __init__(self, address: Callable[[Any], int], fake: bool) -> None:
        """address: of a storage, 0 if it has none. fake: no kernel runs."""
        self._address = address
        self._fake = fake
        self._wrapper = CallWrapper(self._call)
        self._local = _Local()
        self._numbers: dict[int, tuple[Any, int]] = {}  # by id of a module
        self._roots: list[Root] = []
        self._outermost: list[Any] = []  # their modules, as weak references
        self._modules: list[Module] = []
        self._calls: list[list[int]] = []
        self._inputs: list[tuple[int, ...]] = []
        self._outputs: list[tuple[int, ...]] = []
        self._saved: list[list[int]] = []
        # Of a call, until the backward pass comes to it: the counts of its inputs'
        # versions, and what they were.
        self._given: dict[int, list[tuple[Any, int]]] = {}
        self._cached: list[list[int]] = []  # those that autocast's cache holds, too
        self._dropped = Dropped(_DROPPED)
        self._patch: Any = None  # of the function that empties the cache
        self._timed: dict[int, tuple[Any, Any]] = {}  # CUDA events of a call
        self._thread = 0  # the one whose calls are noted: the first that makes one
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, after all else that watches modules."""
        import torch

        clear = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            clear()
            self._uncache()

        self._patch = mock.patch.object(
            torch, "clear_autocast_cache", clear_autocast_cache
        )
        self._patch.start()
        self._wrapper.start()

    def stop(self) -> None:
        """End; does nothing if it has not begun."""
        self._wrapper.stop()
        if self._patch is not None:
            self._patch.stop()
            self._patch = None

    def result(self, since_ns: int = 0) -> Calls:
        """What was noted. since_ns: monotonic ns where the trace's clock reads 0."""
        calls = np.array(self._calls, dtype=np.int64).reshape(-1, 5)
        self._uncache()
        saved = np.array(self._saved, dtype=np.int64).reshape(-1, 6)
        module, parent, begin, end, flags = calls.T
        call, address, packed, unpacked, cached, dropped = saved.T
        end = np.maximum(end, begin)  # of calls that never ended
        cost = (end - begin) * (not self._fake)
        for index, (first, last) in self._timed.items():
            last.synchronize()
            cost[index] = round(first.elapsed_time(last) * 1e6)
        return Calls(
            tuple(self._roots),
            tuple(self._modules),
            module,
            parent,
            np.maximum(begin - since_ns, 0),
            np.maximum(end - since_ns, 0),
            cost,
            flags,
            tuple(self._inputs),
            tuple(self._outputs),
            call,
            address,
            np.maximum(packed - since_ns, 0),
            np.where(unpacked > 0, np.maximum(unpacked - since_ns, 1), 0),
            np.where(cached > 0, np.maximum(cached - since_ns, 1), 0),
            np.where(dropped > 0, np.maximum(dropped - since_ns, 1), 0),
        )

    def _call(self, call: Caller, module: Any, args: Any, kwargs: Any) -> Any:
        torch = sys.modules["torch"]
        number = self._number(module)
        if number is None:
            return call(module, *args, **kwargs)
        if self._local.open or not torch.is_grad_enabled():
            return self._noted(call, number, module, args, kwargs)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            return self._noted(call, number, module, args, kwargs)

    def _number(self, module: Any) -> int | None:
        """Of a module whose call is to be noted; None for another one."""
        if not self._wrapper.running or is_transformed():
            return None
        if in_backward():
            self._object_to(module, AGAIN)
            return None
        self._thread = self._thread or threading.get_ident()
        if threading.get_ident() != self._thread or len(self._calls) > MOST_CALLS:
            return None
        if not self._local.open and id(module) not in self._numbers:
            self._meet(module)
        known = self._numbers.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def _noted(
        self, call: Caller, number: int, module: Any, args: Any, kwargs: Any
    ) -> Any:
        torch, local = sys.modules["torch"], self._local
        own = _own_tensors(module)
        given = list(tensors_in((args, kwargs)))
        versions = [(each, version_of(each)) for each in given]
        buffers = {
            name: (each, self._state_of(module, each))
            for name, each in module._buffers.items()
            if each is not None
        }
        flags = Flag.GRAD if torch.is_grad_enabled() else Flag(0)
        parent = local.open[-1] if local.open else NO_CALL
        with self._lock:
            index = len(self._calls)
            row = [number, parent, 0, 0, int(flags)]
            self._calls.append(row)
            self._inputs.append(self._addresses(given))
            self._outputs.append(())
        local.open.append(index)
        local.autocast = torch.is_autocast_cache_enabled() and any(
            map(torch.is_autocast_enabled, ("cpu", "cuda"))
        )
        if flags:
            self._given[index] = [(_count_of(each), was) for each, was in versions]
        del given
        timed = self._event()
        row[2] = time.monotonic_ns()
        try:
            result = call(module, *args, **kwargs)
        finally:
            row[3] = time.monotonic_ns()
            local.open.pop()
        self._dropped.look()
        if timed is not None and (last := self._event()) is not None:
            self._timed[index] = timed, last
        # What a call puts in its arguments, such as a cache, it returns as well.
        self._outputs[index] = self._addresses(
            (*tensors_in(result), *self._put_in((args, kwargs), versions))
        )
        if any(version_of(each) != was for each, was in versions):
            flags |= Flag.CHANGED
        row[4] = int(flags)
        written = {
            name: bytes_of(each)
            for name, (each, was) in buffers.items()
            if module._buffers.get(name) is not each
            or self._state_of(module, each) != was
        }
        # A small tensor that is replaced is kept for the second call.
        written |= {
            name: size
            for name, (ref, _, size) in own.items()
            if 0 < size <= SMALL and vars(module).get(name) is not ref()
        }
        self._write(number, written)
        obstacle = obstacle_of(module)  # at the end: lazy modules have hooks before
        for ref, was, _ in own.values():
            if (each := ref()) is not None and version_of(each) != was:
                obstacle = _CHANGES
        if obstacle:
            self._object_to(module, obstacle)
        return result

    def _state_of(self, module: Any, buffer: Any) -> object:
        """Something that differs after the buffer was changed.

        Batch norm changes its statistics without counting that as a version, and so
        does whoever calls the function. On the CPU small buffers are compared by what
        they hold, elsewhere those of batch norm count as changed.
        """
        torch = sys.modules["torch"]
        if not self._fake and _is_small(buffer) and buffer.device.type == "cpu":
            with torch.no_grad():
                held = buffer.detach().view(-1).view(torch.uint8)
                return version_of(buffer), held.numpy().tobytes()
        kind = torch.nn.modules.batchnorm._NormBase
        if isinstance(module, kind) and module.training:
            return object()
        return version_of(buffer)

    @staticmethod
    def _put_in(arguments: Any, before: list[tuple[Any, int]]) -> list[Any]:
        """The tensors in the arguments of a call that were not there before it."""
        known = {id(each) for each, _ in before}
        return [each for each in tensors_in(arguments) if id(each) not in known]

    def _look_again(self, call: int) -> None:
        """Whether inputs of a call that is needed again, or of those around it, were
        changed since."""
        while call != NO_CALL:
            for count, was in self._given.pop(call, ()):
                if _version_now(count, was) != was:
                    self._calls[call][4] |= int(Flag.CHANGED)
            call = self._calls[call][1]

    def _meet(self, root: Any) -> None:
        """Number the modules of an outermost one that was not met before."""
        with self._lock:
            self._roots.append(root_of(root))
            self._outermost.append(weakref.ref(root))
            at = len(self._roots) - 1
            parts = list(named_parts(root))
            inside = {id(part) for _, part in parts}
            for path, part in parts:
                known = self._numbers.get(id(part))
                if known is not None and known[0]() is part:
                    # Parts of what is a part itself get the longer path.
                    before = self._outermost[self._modules[known[1]].root]()
                    if before is None or id(before) not in inside:
                        continue
                children = len(part._modules) if is_sequence(part) else 0
                self._numbers[id(part)] = weakref.ref(part), len(self._modules)
                self._modules.append(
                    Module(at, path, kind_of(part), children, "", (), ())
                )

    def _object_to(self, module: Any, why: str) -> None:
        known = self._numbers.get(id(module))
        if known is not None and known[0]() is module:
            self._modules[known[1]] = replace(self._modules[known[1]], obstacle=why)

    def _write(self, number: int, sizes: dict[str, int]) -> None:
        known = self._modules[number]
        if new := [name for name in sizes if name not in known.written]:
            self._modules[number] = replace(
                known,
                written=(*known.written, *new),
                written_bytes=(*known.written_bytes, *(sizes[name] for name in new)),
            )

    def _pack(self, tensor: Any) -> Any:
        opened = self._local.open
        if not opened:
            return tensor
        at = self._addresses([tensor])
        if not at:  # it has no storage
            return tensor
        self._dropped.look()
        row = [opened[-1], *at, time.monotonic_ns(), 0, 0, 0]
        self._saved.append(row)
        if self._local.autocast and _in_autocast_cache(tensor):
            self._cached.append(row)
        return row, self._dropped.alias(tensor, row)

    def _uncache(self) -> None:
        """Autocast's cache is empty now."""
        now = time.monotonic_ns()
        for row in self._cached:
            row[4] = now
        self._cached.clear()

    def _unpack(self, packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        row, tensor = packed
        if not row[3]:
            self._dropped.look()
            row[3] = time.monotonic_ns()
            self._look_again(row[0])
        return tensor

    def _addresses(self, tensors: Any) -> tuple[int, ...]:
        """Of the storages that have one, each once."""
        found = []
        for tensor in tensors:
            if address := of_storage(tensor, self._address):
                found.append(address)
        return tuple(dict.fromkeys(found))

    def _event(self) -> Any:
        """A timed CUDA event, now; None if the program uses no GPU."""
        cuda = sys.modules["torch"].cuda
        if (
            self._fake
            or not cuda.is_initialized()
            or cuda.is_current_stream_capturing()
        ):
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event


def _in_autocast_cache(tensor: Any) -> bool:
    """Whether it is a parameter that autocast converted, or a view of one."""
    node = tensor.grad_fn
    while node is not None and "ToCopy" not in type(node).__name__:
        views = ("TBackward", "TransposeBackward", "ViewBackward", "PermuteBackward")
        if not type(node).__name__.startswith(views):
            return False
        node = node.next_functions[0][0]
    source = None if node is None else node.next_functions[0][0]
    return type(source).__name__ == "AccumulateGrad"


def _own_tensors(module: Any) -> dict[str, tuple[Any, int, int]]:
    """Of the tensors among a module's plain attributes weak references, versions and
    bytes, by name: a call may put others in their place."""
    kind = sys.modules["torch"].Tensor
    return {
        name: (weakref.ref(each), version_of(each), bytes_of(each))
        for name, each in vars(module).items()
        if isinstance(each, kind)
    }


def of_storage(tensor: Any, read: Callable[[Any], int]) -> int:
    """What `read` says of its storage; 0 for a tensor that has none, as sparse and
    opaque ones, and some subclasses."""
    try:
        with sys.modules["torch"]._C.DisableTorchFunction():
            return read(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return 0


def storage_address(storage: Any) -> int:
    """Where a storage lies."""
    return int(storage.data_ptr())


def bytes_of(tensor: Any) -> int:
    """Of its storage, 0 without one."""
    return of_storage(tensor, lambda storage: int(storage.nbytes()))


def _is_small(buffer: Any) -> bool:
    torch = sys.modules["torch"]
    if type(buffer) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False  # one that is not made yet, or a class of the program's
    if buffer.layout is not torch.strided or buffer.is_quantized:
        return False
    plain = not (buffer.is_conj() or buffer.is_neg())
    few = 0 < buffer.nbytes <= SMALL
    return bool(plain and few and buffer.is_contiguous())


def _count_of(tensor: Any) -> Any:
    """A tensor without memory, of the same version now and later; a weak reference to a
    tensor of another class."""
    torch = sys.modules["torch"]
    if not is_plain(tensor) or tensor.is_inference():
        return weakref.ref(tensor)
    with torch.no_grad():
        count = tensor.detach()
        count.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return count


def _version_now(count: Any, was: int) -> int:
    """The version of a tensor, by what `_count_of` made of it."""
    if isinstance(count, weakref.ref):
        count = count()
    return was if count is None else version_of(count)


def version_of(tensor: Any) -> int:
    """How often it was changed in place; 0 for an inference tensor, which has no
    count."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        return 0 if tensor.is_inference() else int(tensor._version)
