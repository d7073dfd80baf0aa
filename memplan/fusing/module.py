"""The fused module: it replaces a model and runs its inference depth-first."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from memplan.errors import UsageError
from memplan.fusing.compiler import agrees, prepare
from memplan.fusing.front.arguments import Signature, key_of
from memplan.fusing.front.capture import NotTraceableError
from memplan.fusing.front.nest import Tensors, flatten, storages
from memplan.fusing.front.recognise import mirrored
from memplan.fusing.front.weights import Watch, has_hooks
from memplan.fusing.memory import ArenaPool
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import Fallback, Prepared

REASON = (
    "memplan.fuse runs a model's inference: its results have no gradients. Run under "
    "torch.no_grad(), or train the model that was fused, which is at .model"
)


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """Its result looks differentiable; asking it for a gradient raises UsageError."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)  # and so no view, which could not be written to
        return value

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> None:
        raise UsageError(REASON)


def refuse_gradients(result: object, anchor: torch.Tensor, inputs: set[int]) -> object:
    """`result` with tensors that raise UsageError where a gradient is asked of them.

    anchor: a parameter that requires one. inputs: addresses of the caller's own memory;
    a tensor that lies there is returned as it is.
    """
    leaves, rebuild = flatten(result)
    replaced: dict[int, torch.Tensor] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or id(leaf) in replaced:
            continue
        if leaf.requires_grad or leaf.untyped_storage().data_ptr() in inputs:
            continue
        if leaf.is_floating_point() or leaf.is_complex():
            fresh = leaf.clone() if leaf._is_view() else leaf
            replaced[id(leaf)] = _NoGradient.apply(anchor, fresh)
    return rebuild([replaced.get(id(leaf), leaf) for leaf in leaves])


def unsupported_call(
    model: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    """Why a call is not plain inference, so that the model itself runs; "" if it is."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "it is being traced"
    if model.training:
        return "it is in training mode"
    if has_hooks(model):
        return "it has hooks"
    grad = torch.is_grad_enabled()
    return (
        _unsupported_surroundings()
        or _unsupported_leaves(args, grad)
        or _unsupported_leaves(kwargs.values(), grad)
    )


def _unsupported_surroundings() -> str:
    """What changes how torch runs any call right now."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "it runs under autocast"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "all modules have hooks"
    if torch._C._len_torch_dispatch_stack() or _has_function_modes():
        return "a mode intercepts torch's functions"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "its functions are transformed"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it takes forward derivatives"
    return ""


def _has_function_modes() -> bool:
    """Whether functions of torch are overridden, by more than a default device."""
    if not torch._C._len_torch_function_stack():
        return False
    stack = _get_current_function_mode_stack()
    return not all(isinstance(mode, DeviceContext) for mode in stack)


def _unsupported_leaves(values: Iterable[object], grad: bool) -> str:
    """What is unsupported among arguments; `Signature.bound` looks inside others."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.fx.Proxy):
                return "it is being traced"
            continue
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"an input is a {type(value).__name__}"
        if grad and value.requires_grad:
            return "an input requires a gradient"
        if value.layout is not torch.strided or value.is_quantized:
            return "an input is sparse or quantized"
    return ""


MOST_SHAPES = 8  # programs kept, for inputs of as many shapes
RECHECK_EVERY = 16  # calls that fell back, until only one in so many is checked again
PATIENCE = 3  # calls with a shape beyond those, until it gets a program, too
MOST_CHANGES = 8  # of modules, in so many calls for each, until no more are followed


@dataclass
class PartlyFused:
    """A model of which some modules, at `paths`, run fused; why it is not whole.

    mirror: a copy of its tree of modules, with the same tensors. fixed: arguments that
    are no tensors.
    """

    mirror: torch.nn.Module
    paths: list[str]
    reason: str
    fixed: dict[str, object]
    watch: Watch

    def stale(self) -> bool:
        """Whether the model has changed."""
        return not self.watch.same_modules()

    def ready(self) -> bool:
        """True: its parts watch their own weights."""
        return True

    def run(self, inputs: Tensors) -> object:
        """What the model returns for these inputs."""
        return self.mirror(**inputs, **self.fixed)


Program = Prepared | PartlyFused | Fallback


class Fused(torch.nn.Module):  # type: ignore[misc]
    """A module whose inference runs depth-first; for everything else it is `model`.

    model: the original, whose weights it uses; when they change, so do its results.
    Calls in training mode, under autocast, with inputs that require gradients, or that
    are traced or compiled, run `model`. Attributes that it lacks are `model`'s.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: FuseOptions,
        arena_pool: ArenaPool | None = None,
    ) -> None:
        """arena_pool: of the model that this is a part of; None for a whole model."""
        super().__init__()
        self.model = model
        self.options = options
        self.training = model.training
        self._reset(arena_pool)

    def _reset(self, arena_pool: ArenaPool | None = None) -> None:
        self._is_part = arena_pool is not None
        self._arena_pool = arena_pool or ArenaPool()
        self._programs: OrderedDict[object, Program] = OrderedDict()
        self._seen: dict[object, int] = {}
        self._patience = PATIENCE
        self._calls = self._changes = self._fallbacks = 0
        self._warned: set[str] = set()
        self._signature = Signature()
        self._compiling = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model" or name.startswith("__"):
                raise
            return getattr(self.model, name)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in _STATE}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._reset()

    def __reduce__(self) -> tuple[object, ...]:
        return _blank, (), self.__getstate__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._skips_check() or unsupported_call(self.model, args, kwargs):
            return self.model(*args, **kwargs)
        try:
            tensors, fixed = self._signature.bound(self.model, args, kwargs)
            key = key_of(tensors, fixed)
        except TypeError:  # the model says what is wrong with them
            return self.model(*args, **kwargs)
        except NotTraceableError as error:
            self._warn(str(error))
            return self.model(*args, **kwargs)
        program = self._program(key, tensors, fixed)
        if isinstance(program, Fallback):
            self._fallbacks += self._fallbacks < RECHECK_EVERY
            return self.model(*args, **kwargs)
        self._fallbacks = 0
        if not program.ready():
            return self.model(*args, **kwargs)
        try:
            with torch.no_grad():
                result = program.run(tensors)
        except Exception as error:
            result = self.model(*args, **kwargs)  # which may well raise, too
            self._fall_back(key, error)
        return self._without_gradients(result, tensors)

    def _skips_check(self) -> bool:
        """Whether checking this call would most likely cost time for nothing."""
        if self._fallbacks < RECHECK_EVERY:
            return False
        self._fallbacks += 1
        return bool(self._fallbacks % RECHECK_EVERY)

    def _program(
        self, key: object, tensors: Tensors, fixed: dict[str, object]
    ) -> Program:
        self._calls += 1
        program = self._programs.get(key)
        if program is not None and not program.stale():
            return program
        with self._compiling:
            now = self._programs.get(key)
            if now is not None and now is not program:
                return now  # another thread has compiled it meanwhile
            return self._compile(key, tensors, fixed, changed=program is not None)

    def _compile(
        self, key: object, tensors: Tensors, fixed: dict[str, object], changed: bool
    ) -> Program:
        if changed:
            self._programs.clear()
            self._changes += 1
        self._seen[key] = self._seen.get(key, 0) + 1
        if len(self._programs) >= MOST_SHAPES and self._seen[key] < self._patience:
            return Fallback("its inputs have many shapes")
        if self._changes > MOST_CHANGES > self._calls // self._changes:
            reason = "its modules change again and again"
            self._warn(reason)
            return Fallback(reason)
        program: Program = prepare(
            self.model, tensors, fixed, self.options, self._arena_pool
        )
        if isinstance(program, Fallback) and program.parts and not self._is_part:
            program = self._fuse_parts(program, tensors, fixed)
        if isinstance(program, Fallback):
            self._warn(program.reason)
        self._store(key, program)
        return program

    def _store(self, key: object, program: Program) -> None:
        self._programs[key] = program
        while len(self._programs) > MOST_SHAPES:
            self._programs.pop(next(iter(self._programs)))
            self._patience *= 2  # or many shapes in turn would compile for ever
            self._seen.clear()
        programs = self._programs.values()
        engines = [each.engine for each in programs if isinstance(each, Prepared)]
        if not any(isinstance(each, PartlyFused) for each in programs):
            self._arena_pool.trim(max((each.bytes for each in engines), default=0))

    def _fuse_parts(
        self, whole: Fallback, tensors: Tensors, fixed: dict[str, object]
    ) -> Program:
        """The model with its parts fused, if it then returns the same results."""

        def fuse_part(part: torch.nn.Module) -> Fused:
            cls = FusedSequence if hasattr(type(part), "__getitem__") else Fused
            return cls(part, self.options, self._arena_pool)

        mirror, paths = mirrored(self.model, fuse_part)
        if not paths:
            return whole
        parts = PartlyFused(mirror, paths, whole.reason, fixed, Watch(self.model, ()))
        if agrees(self.model, parts.run, tensors, fixed, self.options):
            return parts
        return whole

    def _warn(self, reason: str) -> None:
        """Warn once why the model runs unchanged; a part does not warn by itself."""
        if reason not in self._warned and not self._is_part:
            self._warned.add(reason)
            warnings.warn(
                f"memplan.fuse: the model runs unchanged: {reason}",
                stacklevel=_frames_to_caller(),
            )

    def _fall_back(self, key: object, error: Exception) -> None:
        """From now on the model runs where a program failed."""
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self._programs[key] = Fallback(reason, watch=Watch(self.model, ()))
        self._warn(reason)

    def _without_gradients(self, result: object, tensors: Tensors) -> object:
        """Results that raise where a gradient is asked of them, if the model's would
        have one."""
        if not torch.is_grad_enabled():
            return result
        anchor = next((p for p in self.model.parameters() if p.requires_grad), None)
        if anchor is None:
            return result
        return refuse_gradients(result, anchor, storages(tensors.values()))

    def programs(self) -> list[Program]:
        """The programs for the shapes seen last."""
        return list(self._programs.values())


_STATE = {  # what is not pickled
    *("_is_part", "_arena_pool", "_programs", "_seen", "_patience", "_calls"),
    *("_changes", "_warned", "_signature", "_compiling", "_fallbacks"),
}


class FusedSequence(Fused):
    """A fused part that can be indexed and iterated as the Sequential it replaces."""

    def __len__(self) -> int:
        return len(self.model)

    def __getitem__(self, index: int | slice) -> torch.nn.Module:
        return self.model[index]

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(self.model)


def _frames_to_caller() -> int:
    """How many frames `_warn` is away from the program's line that called the model:
    the first that is neither torch's nor of this file."""
    folder = os.path.dirname(torch.__file__ or "")
    own = (f"{folder}{os.sep}", __file__)
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, count = frame.f_back, count + 1
    return count


def _blank() -> Fused:
    """A fused module to be filled from its pickled state."""
    return Fused.__new__(Fused)
