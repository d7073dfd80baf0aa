"""Models that cannot be exported as a whole: their submodules run in one arena."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from memplan.compiling.bench import Bench
from memplan.compiling.module import Compiled, Runner
from memplan.compiling.report import CompilePlan
from memplan.errors import NoPlanError, UsageError
from memplan.graph.arenas import ArenaPool
from memplan.graph.call import Inputs
from memplan.graph.capture import Exports, first_calls
from memplan.graph.measure import footprint
from memplan.graph.parts import replaced
from memplan.graph.standin import StandIn, is_traced

FEWEST = 3  # operators of a part: fewer gain nothing
TRIES = 4  # with tighter budgets of parts, or without the part that needs most
Making = Callable[[nn.Module, Inputs, int | None], Compiled]
"""Compiles a submodule for inputs within a budget of bytes, if one is given."""


class CompiledParts(Compiled):
    """A model that runs itself, with submodules that run in one arena.

    parts: what answers for them, by path.
    """

    _own = Compiled._own | {"parts"}

    def __init__(
        self, model: nn.Module, plan: CompilePlan, parts: Mapping[str, Compiled]
    ) -> None:
        super().__init__(model, plan, None)
        self.parts = dict(parts)

    @property
    def plans(self) -> list[CompilePlan]:
        """The model's; those of its parts are theirs."""
        return [self.memplan]

    def runners(self) -> list[Runner]:
        """What runs its parts."""
        return [each for part in self.parts.values() for each in part.runners()]

    def stale(self) -> bool:
        others = any(each.watch.other_kinds() for each in self.runners())
        return others or bool(self._other()) or super().stale()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = *args, *kwargs.values()
        if is_traced(given):
            return self.model.forward(*args, **kwargs)
        reason = self.unsupported(args, kwargs) or self._other_mode() or self._other()
        if reason:
            self._warn(reason)
            return self.model(*args, **kwargs)
        with torch.no_grad():  # parts that fail run the model's, and say so
            result = self.run(Inputs(args, kwargs))
        return self._without_gradients(result, given)

    def _other(self) -> str:
        """Which part is another module by now; "" if none is."""
        for path, part in self.parts.items():
            module: object = self.model
            for name in path.split("."):
                module = getattr(module, "_modules", {}).get(name)
            if module is not part.model:
                return f"{path} is another module than when it was compiled"
        return ""

    def run(self, inputs: Inputs) -> object:
        """The model's results, computed by the parts where they can."""
        parts = {
            path: lambda args, kwargs, part=part: partial(part.forward, *args, **kwargs)
            for path, part in self.parts.items()
        }
        with replaced(self.model, parts):
            return inputs.run(self.model)


def in_parts(bench: Bench, exports: Exports, limit: float, making: Making) -> Compiled:
    """The model with those of its submodules in an arena that gain by it, measured.

    exports: of its submodules, as the whole has no export. limit: bytes that all may
    take. The model itself, with a reason, if no part gains anything. Raises NoPlanError
    if a part exceeds its share of the limit.
    """
    model, why = bench.model, exports.left_alone[""]
    calls = first_calls(model, bench.inputs)

    def made(path: str, room: float) -> Compiled:
        bench.progress(f"compiling {path}")
        most = None if room == math.inf else max(0, int(room))
        try:
            return making(model.get_submodule(path), calls[path], most)
        except NoPlanError as problem:
            raise NoPlanError(f"{path}: {problem}", problem.peak) from problem

    parts: dict[str, Compiled] = {}
    for target in exports.targets:
        module = model.get_submodule(target.path)
        left = module.training or isinstance(module, StandIn)
        few = len(target.program.ops) < FEWEST
        if bench.fusing is not None:
            few = _is_layer(module)
        if not (left or few):
            parts[target.path] = made(target.path, limit - target.outside)
    found = bench.unchanged(why)
    for _ in range(TRIES):
        parts = {path: each for path, each in parts.items() if each.runner is not None}
        if not parts:
            return found
        found = _measured(bench, why, parts)
        plan = found.memplan
        if plan.status != "compiled":
            return found
        if plan.bytes_after > limit:  # what lies beside the parts was not all known
            most = plan.arena - (plan.bytes_after - limit)
            for path, part in parts.items():
                if (over := part.memplan.arena - most) > 0:
                    parts[path] = made(path, part.memplan.bytes_after - over)
        elif bench.judged(found) is found:
            return found
        else:
            del parts[max(parts, key=lambda path: parts[path].memplan.arena)]
    return bench.judged(found)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a single layer of torch's."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    return own and not module._modules


def _measured(bench: Bench, why: str, parts: Mapping[str, Compiled]) -> Compiled:
    """The model with parts, which share an arena, and its figures; the model itself if
    that is wrong. why: the whole has no export."""
    pool = ArenaPool()  # one part after the other takes from it
    for part in parts.values():
        assert part.runner is not None
        part.runner.arenas = pool
    inputs, plans = bench.inputs, {path: each.memplan for path, each in parts.items()}
    plan = CompilePlan("compiled", why, torch.__version__, bench.before)
    module = CompiledParts(bench.model, plan, parts)
    bench.progress("checking the results")
    try:
        error = bench.error_of(module.run)
    except UsageError as problem:  # it differentiates in its forward
        return bench.unchanged(str(problem))
    if error > (most := bench.tolerance(bench.expected()[0])):
        return bench.unchanged(f"results differ by {error:.1e}, more than {most:.0e}")
    bench.progress("measuring")
    arena = max(each.arena for each in plans.values())
    beside, asked = footprint(lambda: module.run(inputs))
    module.memplan = replace(
        module.memplan,
        bytes_after=arena + beside,
        arena=arena,
        beside=beside,
        requests_before=bench.requests,
        requests_after=asked,
        operators=sum(each.operators for each in plans.values()),
        loops=sum(each.loops for each in plans.values()),
        kernels=sum(each.kernels for each in plans.values()),
        fused=sum(each.fused for each in plans.values()),
        folded=sum(each.folded for each in plans.values()),
        packed=sum(each.packed for each in plans.values()),
        error=error,
        parts=plans,
    )
    bench.timed(module)
    return module
