"""Chunk a model so that its activations fit a budget: the public verb."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import cast

from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.descent import Descent
from memplan.chunking.module import Chunked
from memplan.chunking.options import (
    Budget,
    BudgetError,
    ChunkOptions,
    parse_budget,
    too_large,
    too_slow,
)
from memplan.chunking.plan import ChunkPlan, fingerprint
from memplan.chunking.planfile import read_chunk_plan
from memplan.chunking.recompute import again
from memplan.chunking.region import NotLoopableError, chunked
from memplan.chunking.shapes import OtherSizes
from memplan.chunking.timing import Costs, calibrated
from memplan.chunking.trained import Steps, Trained
from memplan.chunking.trial import Trial
from memplan.chunking.workbench import Workbench
from memplan.errors import InputError, UsageError
from memplan.graph.call import Form, Inputs, Signature
from memplan.graph.capture import Exports, export_parts
from memplan.graph.check import aloud, undone
from memplan.graph.liveness import results_bytes
from memplan.graph.standin import StandIn
from memplan.graph.written import check_parameters
from memplan.units import format_bytes

AGAIN = "search again with a budget"
MORE = "raise the budget"


def chunk(
    model: nn.Module,
    inputs: object,
    budget: str | int | None = None,
    plan: str | os.PathLike[str] | ChunkPlan | None = None,
    options: ChunkOptions | None = None,
) -> Chunked:
    """Return `model` as a module whose inference keeps to a memory budget.

    inputs: a tuple of arguments of its forward, a mapping of keyword arguments, or one
    tensor; the result runs on inputs of the same shapes. budget: for activations,
    without parameters and inputs: bytes, as in "512MiB", a share of today's peak, as in
    "20%", or "min". plan: a ChunkPlan or its file, made for the same model and shapes;
    it replaces the search, and is checked, measured and timed like a new one.

    The module returns the same bits as `model`, or the same within rounding. This is
    checked on these inputs and on random ones; memory and time are measured. Its
    attribute `memplan` is the ChunkPlan.

    A model of `memplan.fuse` stays one: the chunked model is fused between the loops.

    Ctrl-C ends the search; the best module so far is returned if it fits the budget.

    A model in training mode must return its loss. Its cross-entropy, with the logits,
    then runs in slices; the budget is for a step with all gradients of parameters.

    Raises BudgetError (a NoPlanError) if no plan fits the budget within
    options.max_slowdown; UsageError for contradictory arguments and for a model in
    training mode without a loss; InputError for a model that fails and a plan of
    another model.
    """
    if isinstance(model, nn.Module) and model.training:
        return _trained(model, inputs, budget, plan, options or ChunkOptions())
    if isinstance(model, StandIn):  # what another verb made goes around the chunks
        if isinstance(model, Chunked):
            return chunk(model.model, inputs, budget, plan, options)
        model.around(model.model)  # raises before the search where it cannot
        return cast(
            Chunked, model.around(chunk(model.model, inputs, budget, plan, options))
        )
    options = options or ChunkOptions()
    if (budget is None) == (plan is None):
        raise UsageError("give either a budget or a plan, as in budget='20%'")
    chunking = _Chunking(model, inputs, options)
    try:
        return chunking.ready(chunking.run(budget, plan))
    except BudgetError as error:
        chunking.ready(error.closest)
        raise


def _trained(
    model: nn.Module,
    inputs: object,
    budget: str | int | None,
    plan: str | os.PathLike[str] | ChunkPlan | None,
    options: ChunkOptions,
) -> Chunked:
    """`chunk` of a model in training mode."""
    if (budget is None) == (plan is None):
        raise UsageError("give either a budget or a plan, as in budget='20%'")
    model = model.model if isinstance(model, Trained) else model
    given = Inputs.of(inputs)
    arranged = Signature().arranged(model, given.args, given.kwargs)
    steps = Steps(model, arranged, replace(options, progress=aloud(options.progress)))
    with undone(model, arranged) as put_back:
        steps.begin(put_back)
        if plan is not None:
            return steps.reused(plan)
        assert budget is not None
        return steps.within(parse_budget(budget))


class _Chunking:
    def __init__(self, model: nn.Module, inputs: object, options: ChunkOptions) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"the model must be an nn.Module, not {type(model).__name__}"
            )
        self._model, self._progress = model, options.progress
        self._options = replace(options, progress=aloud(options.progress))
        given = Inputs.of(inputs)
        self._inputs = Signature().arranged(model, given.args, given.kwargs)

    def ready(self, module: Chunked) -> Chunked:
        """The module, with the defects that the search met, and able to prepare for
        inputs of other sizes."""
        errors = dict(self._bench.internal_errors)
        module.memplan = replace(module.memplan, internal_errors=errors)
        programs = {each.path: each.program for each in self._exports.targets}
        first = Form.of(self._inputs)
        took = sum(each.seconds for each in self._exports.targets)
        others = OtherSizes(programs, first, took, self._progress)
        module.accept(others, self._options.other_sizes)
        return module

    def run(
        self,
        budget: str | int | None,
        plan: str | os.PathLike[str] | ChunkPlan | None,
    ) -> Chunked:
        """Search, or reuse `plan`, and return the module; the model is as it was."""
        self._options.progress("running the model")
        check_parameters(self._model, self._inputs)
        with undone(self._model, self._inputs) as put_back:
            progress = self._options.progress
            self._bench = Workbench(self._model, self._inputs, progress)
            put_back()  # what it does at its first calls alone is seen again
            return self._run(budget, plan)

    def _run(
        self,
        budget: str | int | None,
        plan: str | os.PathLike[str] | ChunkPlan | None,
    ) -> Chunked:
        wanted = None if budget is None else parse_budget(budget)
        progress = self._options.progress
        self._before = self._bench.before
        progress("exporting")
        self._exports = export_parts(self._model, self._inputs, searchable)
        self._bench.exports = self._exports
        if plan is not None:
            return self._reuse(plan)
        assert wanted is not None
        limit = wanted.bytes_of(self._before)
        if self._before <= limit:
            return self._bench.unchanged(limit, "it fits the budget unchanged")
        if not self._exports.targets:
            nothing = self._bench.unchanged(limit, "no part of it can be exported")
            if wanted.least:
                return nothing
            raise too_large(nothing, limit, self._before, [], {})
        return self._searched(wanted, limit)

    def _searched(self, wanted: Budget, limit: int) -> Chunked:
        options, bench = self._options, self._bench
        descent = Descent(
            self._exports,
            bench,
            Costs(calibrated(bench.device)),
            bench.seconds_once(),
            options,
        )
        if wanted.least:
            module, fast = descent.least()
            if module is None:
                return bench.unchanged(self._before, "none found needs less")
            limit = bench.peak(module)
        else:
            module, fast = descent.found_within(limit)
            if module is None:
                raise self._refusal(descent.nearest, limit)
        module.memplan = replace(module.memplan, budget_bytes=limit)
        if not fast:
            raise self._too_slow(module, f"fits {format_bytes(limit)}", MORE)
        if descent.interrupted:
            reason = "the search was interrupted; this is the best plan so far"
            module.memplan = replace(module.memplan, reason=reason)
        return module

    def _too_slow(self, module: Chunked, fits: str, instead: str) -> BudgetError:
        most = self._options.max_slowdown
        assert most is not None  # else nothing is too slow
        return too_slow(module, most, fits, instead)

    def _refusal(self, nearest: Chunked | None, limit: int) -> BudgetError:
        nearest = nearest or self._bench.unchanged(limit, "no plan found")
        nearest.memplan = replace(nearest.memplan, budget_bytes=limit)
        bench = self._bench
        errors = bench.internal_errors
        whole = [each.program for each in self._exports.targets if not each.path]
        results = sum(map(results_bytes, whole))
        return too_large(
            nearest, limit, self._before, bench.rejections, errors, results
        )

    def _reuse(self, plan: str | os.PathLike[str] | ChunkPlan) -> Chunked:
        """The module of a stored plan, checked and measured like a new one."""
        old = plan if isinstance(plan, ChunkPlan) else read_chunk_plan(plan)
        name = "the plan" if isinstance(plan, ChunkPlan) else os.fspath(plan)
        trials = trials_of(old, name, self._exports)
        module = self._bench.build(trials, old.budget_bytes)
        if module is None:
            raise InputError(
                f"{name} does not fit this model: {self._bench.rejections[-1]}; {AGAIN}"
            )
        after = module.memplan.measured_bytes_after
        if old.status == "chunked" and after > old.budget_bytes:
            raise BudgetError(
                f"{name} needs {format_bytes(after)} here, above its budget of "
                f"{format_bytes(old.budget_bytes)}; {AGAIN}",
                after,
                module.memplan.peak_after.get("line", ""),
                module,
            )
        if not module.chunks:
            return module
        module = self._bench.fastest([module], self._options.enough)
        if not self._bench.is_fast(module, self._options.enough):
            raise self._too_slow(module, f"{name} fits its budget", AGAIN)
        if self._bench.interrupted:
            reason = "the timing was interrupted"
            module.memplan = replace(module.memplan, reason=reason)
        return module


def trials_of(plan: ChunkPlan, name: str, exports: Exports) -> dict[str, Trial]:
    """The trial of each part of `plan`, which messages call `name`.

    Raises InputError if the plan is of another model or other shapes.
    """
    targets = {target.path: target for target in exports.targets}
    trials = {}
    for part in plan.parts:
        target = targets.get(part.path)
        if target is None or fingerprint(target.program) != part.fingerprint:
            raise InputError(
                f"{name} was made for another model, for other shapes, or with "
                f"another torch ({plan.torch}); chunk this model with a budget"
            )
        try:
            program = again(target.program, part.again)
            for region in part.regions:
                program = chunked(program, region, exports.inference)
        except NotLoopableError as error:
            raise InputError(
                f"{name} does not fit this model: {error}; {AGAIN}"
            ) from error
        trials[part.path] = Trial(part.regions, program, again=part.again)
    return trials
