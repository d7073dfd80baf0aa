"""A module that runs in one arena, in the place of the model it was made from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from memplan.compiling.report import CompilePlan
from memplan.compiling.schedule import DEFAULTS, Choices, Schedule, scheduled
from memplan.errors import MemplanError, UsageError
from memplan.graph.arenas import ArenaPool, Slab
from memplan.graph.call import Form, Inputs, UnsupportedCallError, key_of, repeats
from memplan.graph.capture import Target
from memplan.graph.check import lying_as
from memplan.graph.execute import Tape
from memplan.graph.export import first_line
from memplan.graph.locks import Lock
from memplan.graph.nest import first, laid_out, leaves_of
from memplan.graph.program import Program, mapped
from memplan.graph.programs import Programs
from memplan.graph.requests import fills_new_memory
from memplan.graph.standin import Run, StandIn, intercepted
from memplan.graph.weights import UNFILLED, Watch, Weights

MOST_CHANGES = 3  # of weights, in calls in a row, until they are not bound any more
OTHER_KINDS = "weights have other shapes or types than when it was compiled"
KEEPS = "several earlier ones were still in use; from now on all calls copy theirs"


class Runner:
    """A model's program in an arena, bound to the weights as they are now."""

    def __init__(
        self,
        target: Target,
        program: Program,
        inputs: Inputs,
        choices: Choices = DEFAULTS,
    ) -> None:
        """target: the exported model. program: what is to run, with or without loops.
        inputs: of the form that it was exported with."""
        self.target, self.program, self.choices = target, program, choices
        self._weights = Weights(target.module, target.constants)
        places = dict.fromkeys(program.constants.values())
        own = [each for each in places if each not in target.constants]
        self.watch = Watch(target.module, own, target.numbers, target.caches)
        self._strides = [each.stride() for each in inputs.tensors()]
        # Compared first, for speed.
        self.kinds = None if target.form.autocast else kinds_of(inputs)
        self._laid: dict[int, tuple[int, ...]] = {}  # strides of results, by position
        self.arenas = ArenaPool()
        self._lock = Lock()
        self._changes = 0  # of weights, from call to call
        self._bound = False
        self.bind(inputs)

    def unready(self, inputs: Inputs) -> str:
        """Why it cannot run with the weights as they are; "" if it can. Binds them
        again if they have changed, but not while they change at every call."""
        if self._bound and self.watch.same_weights():
            self._changes = 0
            return ""
        with self._lock:
            same = self.watch.same_weights()
            if same and self._bound:  # another thread has bound them
                return ""
            if not same and not self.watch.same_kinds():
                return OTHER_KINDS
            self._changes += not same
            if same or self._changes <= MOST_CHANGES:
                self.bind(inputs)
                return ""
            self.watch, self._bound = self.watch.again(), False
            return "its weights change at every call"

    def bind(self, inputs: Inputs) -> None:
        """Bind the weights again, which have other values or lie elsewhere."""
        watch = self.watch.again()
        places = self.program.constants.items()
        constants = {name: self._weights[place].detach() for name, place in places}
        with torch.inference_mode(False), torch.no_grad():
            self.schedule: Schedule = scheduled(
                self.program,
                constants,
                inputs.tensors(),
                self.choices,
                self.target.inference,
            )
        self.watch = watch  # last: other threads then take the weights for current
        self._bound = True

    @property
    def copies(self) -> bool:
        """Whether results that the arena holds are copied: callers keep many."""
        return self.choices.holds_outputs and self.arenas.left > 0

    def tape(self, schedule: Schedule, slab: Slab) -> Tape:
        """A schedule of the program, bound to a slab of its size."""
        bound = slab.bound(schedule)
        if not bound:
            bound[Tape] = schedule.tape(slab.memory)
        found: Tape = bound[Tape]
        return found

    @property
    def strides(self) -> dict[int, tuple[int, ...]]:
        """Of results that are laid out otherwise than by their kernels, by position."""
        return self._laid

    def learn(self, expected: object, found: object) -> None:
        """Lay results out as `expected`, the model's, where they lie otherwise: some
        kernels do not do it as torch says. found: results for the same inputs."""
        pairs = zip(leaves_of(expected), leaves_of(found), strict=True)
        for position, (one, other) in enumerate(pairs):
            if isinstance(one, Tensor) and laid_out(other, one.stride()) is not other:
                self._laid[position] = one.stride()

    def outdated(self) -> str:
        """What changed in the model, beside its weights, so that its program is
        another; "" for nothing."""
        if not self.watch.same():
            if self.watch.is_cold():
                return UNFILLED
            return "its modules, attributes or hooks have changed"
        return self.watch.other_number()

    def takes(self, kinds: Kinds | None) -> bool:
        """Whether it was made for plain tensors of these kinds."""
        return kinds is not None and kinds == self.kinds

    def difference(self, inputs: Inputs) -> str:
        """How inputs differ from those that it was made for; "" if they do not."""
        if self.takes(kinds_of(inputs)):
            return ""
        form, now = self.target.form, Form.of(inputs)
        if form != now:
            return form.difference(now)
        given = inputs.tensors()
        if any(type(each) not in (Tensor, nn.Parameter) for each in given):
            return "for plain tensors"
        same = [each.stride() for each in given] == self._strides
        return "" if same else "for inputs in another memory layout"

    def __call__(self, inputs: Inputs) -> object:
        """The results for inputs of the form it was made for."""
        if torch.is_autocast_enabled("cpu"):
            # The program contains the casts that autocast makes.
            with torch.autocast("cpu", enabled=False):
                return self(inputs)
        if torch.is_inference_mode_enabled() or torch.is_grad_enabled():
            # All that the tape holds is plain.
            with torch.inference_mode(False), torch.no_grad():
                return self(inputs)
        schedule = self.schedule  # another thread may bind another
        with self.arenas.slab(schedule.bytes) as slab:
            tape = self.tape(schedule, slab)
            results = tape(inputs.tensors(), self.copies)
            slab.given = tape.given
        if self.target.rebuild is first and results:
            return laid_out(results[0], self._laid.get(0))
        found = dict(zip(tape.results, results, strict=True))
        outputs = schedule.flat.program.outputs
        leaves = list(mapped(outputs, lambda ref: found[ref.name]))
        for position, strides in self._laid.items():
            leaves[position] = laid_out(leaves[position], strides)
        return self.target.rebuild(leaves)


Kinds = tuple[tuple[object, ...], ...]


def kinds_of(inputs: Inputs) -> Kinds | None:
    """What a program depends on of plain tensors, as positional arguments and without
    autocast; None for other inputs."""
    if inputs.kwargs or torch.is_autocast_enabled("cpu"):
        return None
    kinds = tuple(map(_kind, inputs.args))
    if same := repeats(inputs.args):
        kinds = (*kinds, same)
    return kinds if all(kinds) else None  # type: ignore[return-value]


def _kind(value: Any) -> tuple[object, ...] | None:
    """What a program depends on of a tensor; None for other values."""
    plain = type(value) is Tensor
    return (value.shape, value.dtype, value.device, value.stride()) if plain else None


class Compiled(StandIn):
    """A module whose forward runs in one arena; for inference.

    memplan: the CompilePlan. plans: that, and those of inputs of other forms. Where
    the model has changed, or a call is no plain inference, the model runs, and a
    warning gives the reason. After a change of weights the program is bound again.
    Calls at the same time use an arena each.
    """

    verb = "compile"
    _own = StandIn._own | {"memplan", "runner", "resize", "_others"}

    def __init__(
        self, model: nn.Module, plan: CompilePlan, runner: Runner | None
    ) -> None:
        super().__init__(model)
        self.memplan = plan
        self.runner = runner  # of the first inputs; None: the model runs
        # Makes the module for inputs of another form.
        self.resize: Callable[[Inputs], Compiled] | None = None
        # Of other inputs: what runs on them, or why the model does; and the plan.
        self._others: Programs[tuple[Runner | str, CompilePlan]] = Programs()

    @property
    def plans(self) -> list[CompilePlan]:
        """Of the first inputs, and of those of other sizes that were met."""
        return [self.memplan, *(plan for _, plan in self._others.all())]

    def runners(self) -> list[Runner]:
        """What runs for its first inputs."""
        return [self.runner] if self.runner is not None else []

    def stale(self) -> bool:
        """Whether the model has changed in more than its weights."""
        return any(runner.outdated() for runner in self.runners())

    def settle(self) -> None:
        """Take the model's attributes as they are for those that it was compiled with:
        what trial runs had changed was put back."""
        for runner in self.runners():
            runner.watch.settle()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "a compiled module is made for this process; save its model and compile it "
            "again"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Compiled:
        """A copy of the model, which runs as it is until it is compiled."""
        reason = "it is a copy of a compiled module"
        plan = replace(self.memplan, status="unchanged", reason=reason)
        return Compiled(copy.deepcopy(self.model, memo), plan, None)

    def unsupported(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        reason = super().unsupported(args, kwargs)
        asked = torch.is_grad_enabled() and any(
            isinstance(each, Tensor) and each.requires_grad
            for each in tree_leaves((args, kwargs))
        )
        if fills_new_memory():
            reason = reason or "torch is set to fill new memory"
        reason = reason or intercepted()
        return reason or ("an input requires a gradient" if asked else "")

    def _ready(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, Run] | None:
        # Another thread's export is a mode of the process.
        first = self.runner
        if first is None or torch.compiler.is_compiling():
            return None
        runner: Runner | str = self.unsupported(args, kwargs)
        if not runner:
            inputs = self._signature.arranged(self.model, args, kwargs)
            runner = self._runner_for(inputs, first)
        if isinstance(runner, Runner):
            runner = runner.outdated() or runner.unready(inputs) or runner
        if isinstance(runner, str):
            self._warn(runner)
            return None
        if runner.copies:
            self._warn(KEEPS, "results are copied")
        return runner, partial(runner, inputs)

    def _runner_for(self, inputs: Inputs, first: Runner) -> Runner | str:
        """What runs on these inputs, or why the model does."""
        kinds = kinds_of(inputs)
        if first.takes(kinds):
            return first
        key: object = kinds
        if kinds is None:
            difference = first.difference(inputs)
            if not difference:
                return first
            given = inputs.tensors()
            if not all(map(_kind, given)):
                return f"it was compiled {difference}; compile it with them"
            key = Form.of(inputs), tuple(each.stride() for each in given)
        if found := self._others.get(key):
            return found[0]
        with self._lock:
            found = self._others.get(key)  # another thread may have compiled meanwhile
            return found[0] if found else self._made(key, inputs, first)

    def _made(self, key: object, inputs: Inputs, first: Runner) -> Runner | str:
        """What runs on inputs of another form from now on, or why the model does."""
        difference = first.difference(inputs)
        if torch.autograd._profiler_enabled():  # measuring takes one
            return f"it was compiled {difference}; a profiler runs"
        try:
            key_of(inputs)
        except UnsupportedCallError as problem:
            return str(problem)
        if not self._others.admits(key):
            return "its inputs have many shapes"
        runner, plan = self._compiled(inputs, first)
        found = runner or f"it was compiled {difference}: {plan.reason}"
        self._others.keep(key, (found, plan))
        return found

    def _compiled(
        self, inputs: Inputs, first: Runner
    ) -> tuple[Runner | None, CompilePlan]:
        """What runs on inputs of another form, in the arenas of the first."""
        assert self.resize is not None
        try:
            with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
                ours = [lying_as(each, each) for each in inputs.tensors()]
                made = self.resize(inputs.with_tensors(ours))
        except MemplanError as problem:
            reason = str(problem)
        except Exception as error:  # the model's own run may be right
            reason = f"internal error: {first_line(error)}"
        else:
            if made.runner is not None:
                made.settle()
                made.runner.arenas = first.arenas
            return made.runner, made.memplan
        return None, CompilePlan("unchanged", reason, torch.__version__, 0)

    def _give_up(self, key: object, error: Exception) -> None:
        self.runner = None
        self._warn(f"internal error: {first_line(error)}")
