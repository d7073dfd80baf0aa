"""The fused module: it replaces a model and runs its inference depth-first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from memplan.fusing.compiler import agrees, prepare
from memplan.fusing.front.recognise import mirrored
from memplan.fusing.memory import ArenaPool
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import Fallback, Prepared
from memplan.graph.call import UnsupportedCallError, key_of
from memplan.graph.export import first_line
from memplan.graph.nest import Tensors
from memplan.graph.standin import Run, StandIn
from memplan.graph.weights import Watch


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
    """What is unsupported among arguments; `Signature.named` looks inside others."""
    for value in values:
        if not isinstance(value, torch.Tensor):
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


class Fused(StandIn):
    """A module whose inference runs depth-first; for everything else it is `model`.

    Calls under autocast, or with inputs that require gradients, run `model`, too.
    """

    verb = "fuse"
    _unpickled = StandIn._unpickled | {
        *("_is_part", "_arena_pool", "_programs", "_seen", "_patience", "_calls"),
        *("_changes", "_fallbacks"),
    }

    def __init__(
        self,
        model: torch.nn.Module,
        options: FuseOptions,
        arena_pool: ArenaPool | None = None,
    ) -> None:
        """arena_pool: of the model that this is a part of; None for a whole model."""
        super().__init__(model)
        self.options = options
        if arena_pool is not None:
            self._is_part, self._arena_pool = True, arena_pool

    def _reset(self) -> None:
        super()._reset()
        self._is_part, self._arena_pool = False, ArenaPool()
        self._programs: OrderedDict[object, Program] = OrderedDict()
        self._seen: dict[object, int] = {}
        self._patience = PATIENCE
        self._calls = self._changes = self._fallbacks = 0

    def unsupported(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        grad = torch.is_grad_enabled()
        return (
            super().unsupported(args, kwargs)
            or _unsupported_surroundings()
            or _unsupported_leaves(args, grad)
            or _unsupported_leaves(kwargs.values(), grad)
        )

    def _ready(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, Run] | None:
        if self._skips_check() or self.unsupported(args, kwargs):
            return None
        try:
            tensors, fixed = self._signature.named(self.model, args, kwargs)
            key = key_of(tensors, fixed)
        except TypeError:  # the model says what is wrong with them
            return None
        except UnsupportedCallError as error:
            self._warn(str(error))
            return None
        program = self._program(key, tensors, fixed)
        if isinstance(program, Fallback):
            self._fallbacks += self._fallbacks < RECHECK_EVERY
            return None
        self._fallbacks = 0
        return (key, partial(program.run, tensors)) if program.ready() else None

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
        with self._lock:
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
            return Fused(part, self.options, self._arena_pool)

        mirror, paths = mirrored(self.model, fuse_part)
        if not paths:
            return whole
        parts = PartlyFused(mirror, paths, whole.reason, fixed, Watch(self.model, ()))
        if agrees(self.model, parts.run, tensors, fixed, self.options):
            return parts
        return whole

    def _warn(self, reason: str, what: str = "the model runs") -> None:
        if not self._is_part:  # a part does not warn by itself
            super()._warn(reason, what)

    def _give_up(self, key: object, error: Exception) -> None:
        reason = first_line(error)
        self._programs[key] = Fallback(reason, watch=Watch(self.model, ()))
        self._warn(reason)

    def programs(self) -> list[Program]:
        """The programs for the shapes seen last."""
        return list(self._programs.values())
