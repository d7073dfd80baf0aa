"""The fused module: it replaces a model, and compiles at the first call of a form."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memplan.compiling.module import OTHER_KINDS, Compiled, kinds_of
from memplan.compiling.on_gpu import OnGPU
from memplan.compiling.parts import CompiledParts
from memplan.compiling.prepare import prepare
from memplan.compiling.report import Fallback
from memplan.fusing.options import FuseOptions
from memplan.graph.arenas import ArenaPool
from memplan.graph.call import Inputs, UnsupportedCallError, key_of
from memplan.graph.export import first_line
from memplan.graph.programs import Programs
from memplan.graph.standin import UNCHANGED, ModelsError, Run, StandIn, intercepted
from memplan.graph.weights import Watch

RECHECK_EVERY = 16  # calls that fell back, until only one in so many is checked again
MOST_CHANGES = 8  # of modules, in so many calls for each, until no more are followed

Made = Compiled | OnGPU
Program = Made | Fallback


class Fused(StandIn):
    """A module whose inference runs depth-first; for everything else it is `model`.

    Calls under autocast, or with inputs that require gradients, run `model`, too.
    """

    verb = "fuse"
    _unpickled = StandIn._unpickled | {
        *("_arenas", "_programs", "_calls", "_changes", "_fallbacks"),
    }
    _own = _unpickled | {"model", "options"}

    def __init__(self, model: torch.nn.Module, options: FuseOptions) -> None:
        super().__init__(model)
        self.options = options

    def _reset(self) -> None:
        super()._reset()
        self._arenas = ArenaPool()
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
            key = _key(inputs)
        except UnsupportedCallError as error:
            self._warn(str(error))
            return None
        program = self._program(key, inputs)
        if isinstance(program, Fallback):
            self._fallbacks += self._fallbacks < RECHECK_EVERY
            return None
        self._fallbacks = 0
        run = self._run(key, program, inputs)
        return None if run is None else (key, run)

    def _run(self, key: object, program: Made, inputs: Inputs) -> Run | None:
        """What computes a program's results; None: the model does, in this call."""
        if isinstance(program, CompiledParts):
            return partial(_in_parts, program, inputs)
        if isinstance(program, OnGPU):
            return partial(program.run, inputs)
        assert program.runner is not None
        reason = program.runner.unready(inputs)
        if reason == OTHER_KINDS:
            with self._lock:
                self._compile(key, inputs, changed=True)
        return None if reason else partial(program.runner, inputs)

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
        program = prepare(self.model, inputs, self.options)
        if isinstance(program, Fallback):
            self._warn(program.reason)
        elif isinstance(program, CompiledParts):
            self._warn(program.memplan.reason, "parts of the model run unchanged")
        elif isinstance(program, Compiled) and program.memplan.reason:
            self._warn(program.memplan.reason, "all images run at once")
        if isinstance(program, Compiled):
            for plan in (program.memplan, *program.memplan.parts.values()):
                for error in plan.internal_errors:
                    self._warn(error, "some kernels were not taken")
        self._store(key, program)
        return program

    def _store(self, key: object, program: Program) -> None:
        self._programs.keep(key, program)
        runners = [each for made in self.prepared() for each in made.runners()]
        for runner in runners:
            runner.arenas = self._arenas
        self._arenas.trim(max((each.schedule.bytes for each in runners), default=0))

    def _warn(self, reason: str, what: str = UNCHANGED) -> None:
        if isinstance(self.model, StandIn):
            what = f"the plan of memplan.{self.model.verb} runs unchanged"
        super()._warn(reason, what)

    def _give_up(self, key: object, error: Exception) -> None:
        reason = first_line(error)
        self._programs.keep(key, Fallback(reason, None, Watch(self.model, ())))
        self._warn(reason)

    def around(self, model: torch.nn.Module) -> Fused:
        return Fused(model, self.options)

    def programs(self) -> list[Program]:
        """The programs for the shapes seen last."""
        return self._programs.all()

    def prepared(self) -> list[Compiled]:
        """Those of them that run fused."""
        return [each for each in self.programs() if isinstance(each, Compiled)]


def _key(inputs: Inputs) -> object:
    """What a program depends on. Raises UnsupportedCallError."""
    kinds: object = kinds_of(inputs)  # the quicker of the two
    if kinds is None:
        nest, tensors = key_of(inputs)
        kinds = nest, *(each.stride() for each in tensors)
    return kinds, torch.get_num_threads()


def _in_parts(program: CompiledParts, inputs: Inputs) -> object:
    """The model's results; what its parts raise is answered by their modules."""
    try:
        return program.run(inputs)
    except Exception as error:
        raise ModelsError from error


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
