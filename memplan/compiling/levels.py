"""What each pass of `memplan.compile` brings, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from memplan.compiling.bench import Bench, CompileOptions
from memplan.compiling.compile import compile as compiled
from memplan.compiling.module import Runner
from memplan.compiling.report import CompilePlan
from memplan.compiling.schedule import Choices
from memplan.errors import NoPlanError
from memplan.graph.program import Loop, Program


@dataclass(frozen=True)
class Level:
    """A pass on top of the ones before it.

    name: what it does. plan: as measured with it; its status is "unchanged" where the
    program does not run with these passes alone, and its reason says why.
    """

    name: str
    plan: CompilePlan


def compile_levels(
    model: nn.Module,
    inputs: object,
    budget: str | int | None = None,
    options: CompileOptions | None = None,
) -> tuple[Level, ...]:
    """What each pass brought of what `compile` did, with the same arguments.

    The last one is the module's plan. Passes that it went without are not there.

    Raises NoPlanError if the model runs unchanged, and what `compile` raises.
    """
    module = compiled(model, inputs, budget, options)
    last, plan = module.runner, module.memplan
    if plan.parts:
        raise NoPlanError("parts of the model are compiled, each for itself")
    if last is None:
        raise NoPlanError(f"no plan was found: {plan.reason}", plan.bytes_before)
    bench = Bench(model, inputs, options)
    bench.target, bench.slowest = last.target, math.inf
    bench.before, bench.requests = plan.bytes_before, plan.requests_before
    with bench.unwritten():
        *before, (name, _, _) = _passes(last, plan)
        found = [
            Level(each, bench.measured(program, choices))
            for each, program, choices in before
        ]
    return (*found, Level(name, plan))


def _passes(last: Runner, plan: CompilePlan) -> Iterator[tuple[str, Program, Choices]]:
    """Names, programs and choices, each with a pass more than the one before."""
    whole, wanted = last.target.program, last.choices
    now = replace(wanted, kernels=(), holds_outputs=False)
    now = replace(now, reorders=False, overwrites=False)
    yield "one arena", whole, now
    now = replace(now, reorders=True)
    yield "the best order found", whole, now
    now = replace(now, overwrites=True)
    yield "results over operands", whole, now
    now = replace(now, kernels=wanted.kernels)
    if last.schedule.relieved:
        yield "less scratch memory", whole, now
    elif plan.packed:
        name = "memplan's kernels" if plan.kernels else "packed weights"
        yield name, whole, now
    if any(isinstance(step, Loop) for step in last.program.ops):
        loops = "1 loop" if plan.loops == 1 else f"{plan.loops:,} loops"
        yield loops, last.program, now
    if wanted.holds_outputs:
        yield "results in the arena", last.program, wanted
