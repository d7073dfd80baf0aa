"""The fused module: it replaces a model and runs its inference depth-first."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memplan.fusing.compiler import agrees, prepare
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import Fallback, Prepared, inference
from memplan.graph.arenas import ArenaPool
from memplan.graph.call import Inputs, UnsupportedCallError, key_of
from memplan.graph.capture import first_calls
from memplan.graph.check import undone
from memplan.graph.export import first_line
from memplan.graph.programs import Programs
from memplan.graph.standin import UNCHANGED, Run, StandIn, intercepted
from memplan.graph.weights import Watch, has_hooks


def _autocast() -> str:
    cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return "it runs under autocast" if cast else ""


def _unsupported_leaves(values: Iterable[object], grad: bool) -> str:
    """What is unsupported among arguments."""
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


RECHECK_EVERY = 16  # calls that fell back, until only one in so many is checked again
MOST_CHANGES = 8  # of modules, in so many calls for each, until no more are followed


@dataclass
class PartlyFused:
    """A model of which some modules, at `paths`, run fused; why it is not whole.

    mirror: a copy of its tree of modules, with the same tensors.
    """

    mirror: torch.nn.Module
    paths: list[str]
    reason: str
    watch: Watch

    def stale(self) -> bool:
        """Whether the model has changed."""
        return not self.watch.same_modules()

    def ready(self) -> bool:
        """True: its parts watch their own weights."""
        return True


Program = Prepared | PartlyFused | Fallback


class Fused(StandIn):
    """A module whose inference runs depth-first; for everything else it is `model`.

    Calls under autocast, or with inputs that require gradients, run `model`, too.
    """

    verb = "fuse"
    _unpickled = StandIn._unpickled | {
        *("_is_part", "_arena_pool", "_programs", "_calls", "_changes", "_fallbacks"),
    }

    _own = _unpickled | {"model", "options"}

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
        self._programs: Programs[Program] = Programs()
        self._calls = self._changes = self._fallbacks = 0

    def unsupported(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        reason = super().unsupported(args, kwargs) or _autocast() or intercepted()
        plain = not kwargs and all(isinstance(each, torch.Tensor) for each in args)
        leaves = args if plain else tree_leaves((args, kwargs))
        return reason or _unsupported_leaves(leaves, torch.is_grad_enabled())

    def _ready(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, Run] | None:
        if self._skips_check() or self.unsupported(args, kwargs):
            return None
        inputs = self._signature.arranged(self.model, args, kwargs)
        try:
            key, tensors = key_of(inputs)
        except UnsupportedCallError as error:
            self._warn(str(error))
            return None
        program = self._program(key, inputs)
        if isinstance(program, Fallback):
            self._fallbacks += self._fallbacks < RECHECK_EVERY
            return None
        self._fallbacks = 0
        if not program.ready():
            return None
        if isinstance(program, PartlyFused):
            return key, partial(inputs.run, program.mirror)
        return key, partial(program.run, tensors)

    def _skips_check(self) -> bool:
        """Whether checking this call would most likely cost time for nothing."""
        if self._fallbacks < RECHECK_EVERY:
            return False
        self._fallbacks += 1
        return bool(self._fallbacks % RECHECK_EVERY)

    def _program(self, key: object, inputs: Inputs) -> Program:
        self._calls += 1
        program = self._programs.get(key)
        if program is not None and not program.stale():
            return program
        with self._lock:
            now = self._programs.get(key)
            if now is not None and now is not program:
                return now  # another thread has compiled it meanwhile
            return self._compile(key, inputs, changed=program is not None)

    def _compile(self, key: object, inputs: Inputs, changed: bool) -> Program:
        if torch.autograd._profiler_enabled():  # memplan measures by one of its own
            return Fallback("a profiler runs")
        if changed:
            self._programs.clear()
            self._changes += 1
        if not self._programs.admits(key):
            return Fallback("its inputs have many shapes")
        if self._changes > MOST_CHANGES > self._calls // self._changes:
            reason = "its modules change again and again"
            self._warn(reason)
            return Fallback(reason)
        program: Program = prepare(self.model, inputs, self.options, self._arena_pool)
        if isinstance(program, Fallback) and program.parts and not self._is_part:
            program = self._fuse_parts(program, inputs)
        if isinstance(program, Fallback):
            self._warn(program.reason)
        elif isinstance(program, PartlyFused):
            self._warn(program.reason, "parts of the model run unchanged")
        self._store(key, program)
        return program

    def _store(self, key: object, program: Program) -> None:
        self._programs.keep(key, program)
        programs = self._programs.all()
        engines = [each.engine for each in programs if isinstance(each, Prepared)]
        if not any(isinstance(each, PartlyFused) for each in programs):
            self._arena_pool.trim(max((each.bytes for each in engines), default=0))

    def _fuse_parts(self, whole: Fallback, inputs: Inputs) -> Program:
        """The model with its parts fused, if it then returns the same results."""
        if isinstance(self.model, StandIn):
            return whole
        with undone(self.model), inference():
            mirror = _Mirror(self, first_calls(self.model, inputs))
            made = mirror.of(self.model, "")
            agree = mirror.paths and agrees(self.model, made, inputs, self.options)
        if not agree:
            return whole
        watch = Watch(self.model, ())
        return PartlyFused(made, mirror.paths, whole.reason, watch)

    def prepare(self, inputs: Inputs) -> bool:
        """Compile for inputs of this form; whether it then runs fused."""
        self._ready(inputs.args, inputs.kwargs)
        return any(isinstance(each, Prepared) for each in self.programs())

    def part(self, module: torch.nn.Module) -> Fused:
        """A module of the model, to be fused by itself in the same arenas."""
        return Fused(module, self.options, self._arena_pool)

    def _warn(self, reason: str, what: str = UNCHANGED) -> None:
        if isinstance(self.model, StandIn):
            what = f"the plan of memplan.{self.model.verb} runs unchanged"
        if not self._is_part:  # a part does not warn by itself
            super()._warn(reason, what)

    def _give_up(self, key: object, error: Exception) -> None:
        reason = first_line(error)
        self._programs.keep(key, Fallback(reason, watch=Watch(self.model, ())))
        self._warn(reason)

    def around(self, model: torch.nn.Module) -> Fused:
        return Fused(model, self.options)

    def programs(self) -> list[Program]:
        """The programs for the shapes seen last."""
        return self._programs.all()


class _Mirror:
    """Makes a copy of a model's tree of modules in which the largest that can be
    captured and gain from it run fused; the tensors are the model's own.

    paths: of those modules. A module with hooks, which are given the module itself, is
    in the copy as it is.
    """

    def __init__(self, whole: Fused, calls: dict[str, Inputs]) -> None:
        self._whole, self._calls = whole, calls
        self._made: dict[torch.nn.Module, torch.nn.Module] = {}
        self.paths: list[str] = []

    def of(self, module: torch.nn.Module, path: str) -> torch.nn.Module:
        """A module's copy; itself where nothing in it is fused."""
        changed: dict[str, torch.nn.Module] = {}
        for name, child in module._modules.items():
            if child is None or has_hooks(child) or isinstance(child, StandIn):
                continue
            here = f"{path}.{name}" if path else name
            if child not in self._made:
                self._made[child] = self._part(child, here) or self.of(child, here)
            if self._made[child] is not child:
                changed[name] = self._made[child]
        if not changed:
            return module
        mirror = copy.copy(module)
        mirror._modules = type(module._modules)({**module._modules, **changed})
        return mirror

    def _part(self, module: torch.nn.Module, path: str) -> torch.nn.Module | None:
        """A module fused for its first call; itself where that gains nothing; None
        where it cannot be captured."""
        single = not module._modules
        if single and type(module).__module__.startswith("torch.nn.modules."):
            return module
        call = self._calls.get(path)
        if call is None:
            return None
        part = self._whole.part(module)
        if part.prepare(call):
            self.paths.append(path)
            return part
        fallbacks = [each for each in part.programs() if isinstance(each, Fallback)]
        return module if any(each.network for each in fallbacks) else None
