"""Chunk the loss of a model that is trained, so that a step fits a budget."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from memplan.chunking.deferred import Deferring, Uses
from memplan.chunking.module import Chunked
from memplan.chunking.options import (
    Budget,
    BudgetError,
    ChunkOptions,
    too_slow,
)
from memplan.chunking.plan import ChunkPlan, RegionRow
from memplan.chunking.planfile import read_chunk_plan
from memplan.chunking.workbench import with_times
from memplan.errors import InputError, UsageError
from memplan.graph.call import Inputs
from memplan.graph.check import (
    TINY,
    Snapshot,
    devices_drawn,
    relative_error,
    tolerance_of,
)
from memplan.graph.clock import in_pairs
from memplan.graph.export import first_line
from memplan.graph.measure import activation_peak
from memplan.graph.nest import flatten
from memplan.graph.standin import is_traced
from memplan.graph.weights import Weights
from memplan.units import format_bytes

FEWEST = 16  # rows of a slice
SEED = 20261129


class Trained(Chunked):
    """A model whose cross-entropy runs in slices while it is trained.

    memplan: the ChunkPlan; its `loss_rows` says of which weights, and in slices of how
    many rows. In evaluation and without gradients the model runs as it is.
    """

    def __init__(self, model: nn.Module, plan: ChunkPlan, inputs: Inputs) -> None:
        super().__init__(model, {}, plan, inputs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns. Logits that its loss alone needs are not there until
        they are asked for."""
        rows = self.memplan.loss_rows
        plain = not (self.model.training and torch.is_grad_enabled() and rows)
        if plain or is_traced((*args, *kwargs.values())):
            return self.model(*args, **kwargs)
        weights = Weights(self.model, {})
        owners = {id(weights[name]): rows[name] for name in rows if name in weights}
        with Deferring(Uses(), owners):
            return self.model(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Module.__reduce_ex__(self, protocol)


class Steps:
    """Steps of a model in training mode, and of modules made of it whose cross-entropy
    runs in slices: their gradients, memory and time.

    A step is the forward pass and all gradients of parameters, which count as well.
    """

    put_back: Callable[[], None]

    def __init__(self, model: nn.Module, inputs: Inputs, options: ChunkOptions) -> None:
        self.model, self.inputs, self.options = model, inputs, options
        self.device = inputs.check_device(model)
        self.weights = [each for each in model.parameters() if each.requires_grad]
        if not self.weights:
            raise UsageError("no parameter of the model requires a gradient")
        self.began = monotonic()
        self.snapshot = Snapshot([*inputs.leaves(), *model.buffers()])
        self.uses = Uses()
        self.names: list[str] = []  # of weights whose logits only a loss needs
        self.failure = ""

    def begin(self, put_back: Callable[[], None]) -> None:
        """Run the model, measure it, and see whose logits only a loss needs.

        put_back: of attributes that the model changes. Raises UsageError for a model
        that returns no loss, InputError for one that fails.
        """
        self.put_back = put_back
        self.options.progress("running the model")
        try:
            self.expected = self.step(self.model)
        except UsageError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"a step of the model fails on these inputs: {first_line(error)}"
            ) from error
        self.before = activation_peak(lambda: self.step(self.model), self.device)

        def deferring(*args: Any, **kwargs: Any) -> Any:
            with Deferring(self.uses):
                return self.model(*args, **kwargs)

        try:
            self.step(deferring)
        except Exception as error:  # any code may stumble over logits that are left out
            self.failure = f"it fails without its logits: {first_line(error)}"
            return
        alone = self.uses.sliced.keys() - self.uses.whole.keys()
        self.names = [
            name for name, each in self.model.named_parameters() if id(each) in alone
        ]

    def step(
        self, run: Callable[..., Any], weights: Sequence[Tensor] = ()
    ) -> list[Tensor | None]:
        """The loss and the gradients of parameters, with the same random numbers each
        time; buffers and attributes are put back. weights: other ones."""
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices_drawn()):
                torch.manual_seed(SEED)
                loss = _loss_of(self.inputs.run(run))
                weights = weights or self.weights
                found = torch.autograd.grad(loss, weights, allow_unused=True)
            return [loss.detach(), *found]
        finally:
            self.snapshot.restore()
            self.put_back()

    def error(
        self, found: list[Tensor | None], beside: list[Tensor | None] | None = None
    ) -> float:
        """The largest difference of a gradient, over the largest gradient; of the loss,
        over the loss. beside: another step than the model's."""
        beside = beside or self.expected
        if [x is None for x in found] != [x is None for x in beside]:
            return float("inf")
        expected, given = (
            [
                x.to(y.dtype)
                for x, y in zip(step, beside, strict=True)
                if x is not None and y is not None
            ]
            for step in (beside, found)
        )
        most = max((float(x.abs().max()) for x in expected[1:]), default=TINY)
        return relative_error(expected, given, [TINY, *[most] * len(expected[1:])])

    def is_closer(self, found: list[Tensor | None]) -> bool:
        """Whether gradients are no further from those in float64 than the model's own:
        some losses of torch round more than their slices."""
        wide, inputs = copy.deepcopy(self.model).double(), self.inputs
        self.inputs = inputs.with_tensors(
            [
                x.double() if x.is_floating_point() else x
                for x in inputs.leaves()
                if isinstance(x, Tensor)
            ]
        )
        try:
            weights = [each for each in wide.parameters() if each.requires_grad]
            exact = self.step(wide, weights)
        except RuntimeError:  # the model has types of its own
            return False
        finally:
            self.inputs = inputs
        return self.error(found, exact) <= self.error(self.expected, exact)

    def module(self, rows: Mapping[str, int], limit: int) -> Trained:
        """The module of slices of so many rows, checked and measured.

        Raises InputError if its gradients are others."""
        self.options.progress("measuring")
        plan = ChunkPlan(
            "chunked",
            "",
            limit,
            measured_bytes_before=self.before,
            device=self.device,
            torch=torch.__version__,
            loss_rows=dict(rows),
            regions=tuple(_row(name, self.uses.rows, rows[name]) for name in rows),
        )
        module = Trained(self.model, plan, self.inputs)
        found: list[Tensor | None] = []
        after = activation_peak(lambda: found.extend(self.step(module)), self.device)
        error = self.error(found)
        if not error <= tolerance_of([x for x in self.expected if x is not None]):
            if self.error(self.step(self.model)) > 0:
                raise InputError("the model's gradients change from step to step")
            if not self.is_closer(found):
                raise InputError(f"in slices, gradients differ by {error:.1e}")
        module.memplan = replace(
            plan,
            max_relative_error=error,
            measured_bytes_after=after,
            search_seconds=monotonic() - self.began,
        )
        return module

    def within(self, budget: Budget) -> Trained:
        """The module with the largest slices whose step fits the budget."""
        limit = budget.bytes_of(self.before)
        if not budget.least and self.before <= limit:
            return self.unchanged(limit, "it fits the budget unchanged")
        try:
            lower = self.lower(limit)
            reason = "" if self.names else self.obstacle()
        except InputError as error:
            lower, reason = [], str(error)
        if not lower:
            nothing = self.unchanged(limit, reason or "no slices need less")
            if budget.least:
                return nothing
            raise self.refused(nothing, limit)
        if not budget.least:
            if lower[-1].memplan.measured_bytes_after > limit:
                raise self.refused(lower[-1], limit)
            return self.timed(lower[-1])
        for module in lower:
            after = module.memplan.measured_bytes_after
            module.memplan = replace(module.memplan, budget_bytes=after)
        for module in lower[:0:-1]:  # small slices may be slow
            with suppress(BudgetError):
                return self.timed(module)
        return self.timed(lower[0])

    def lower(self, limit: int) -> list[Trained]:
        """Modules of smaller and smaller slices, each of which needs less than the one
        before and the model, up to the first that fits a limit. Slices are halved from
        half of all rows."""
        found: list[Trained] = []
        rows, least = self.uses.rows, self.before
        while self.names and (rows > FEWEST or rows == self.uses.rows):
            rows = -(-rows // 2)
            module = self.module(dict.fromkeys(self.names, rows), limit)
            after = module.memplan.measured_bytes_after
            if after >= least:
                break
            found.append(module)
            least = after
            if after <= limit:
                break
        return found

    def timed(self, module: Trained) -> Trained:
        """The module with its time beside the model's. Raises BudgetError if it is too
        slow."""
        self.options.progress("timing")
        ratios = in_pairs(
            lambda: self.step(self.model),
            lambda: self.step(module),
            self.device,
            self.options.enough,
        )
        plan = with_times(module.memplan, ratios, self.options.enough)
        module.memplan = replace(plan, search_seconds=monotonic() - self.began)
        most = self.options.max_slowdown
        if most is not None and plan.slowdown_low > most:
            fits = f"fits {format_bytes(module.memplan.budget_bytes)}"
            raise too_slow(module, most, fits, "raise the budget")
        return module

    def unchanged(self, limit: int, reason: str) -> Trained:
        """The model as it is."""
        plan = ChunkPlan(
            "unchanged",
            reason,
            limit,
            measured_bytes_before=self.before,
            measured_bytes_after=self.before,
            device=self.device,
            torch=torch.__version__,
            search_seconds=monotonic() - self.began,
        )
        return Trained(self.model, plan, self.inputs)

    def obstacle(self) -> str:
        """Why no loss runs in slices."""
        if self.failure:
            return self.failure
        if not self.uses.whole:
            return "no product with a parameter that makes rows wider was seen in it"
        widest, function = max(self.uses.whole.values(), key=lambda pair: len(pair[0]))
        names = {id(each): name for name, each in self.model.named_parameters()}
        return (
            f"its product with {names.get(id(widest), 'a weight')} does not go to a "
            f"cross-entropy alone: {function} needs it whole"
        )

    def refused(self, closest: Trained, limit: int) -> BudgetError:
        floor = closest.memplan.measured_bytes_after
        why = f" ({closest.memplan.reason})" if closest.memplan.reason else ""
        return BudgetError(
            f"no slices of the loss fit {format_bytes(limit)}: the lowest step found "
            f"takes {format_bytes(floor)}{why}; raise the budget, or let memplan solve "
            "--budget compute activations again",
            floor,
            "",
            closest,
        )

    def reused(self, plan: str | os.PathLike[str] | ChunkPlan) -> Trained:
        """The module of a stored plan, checked and measured like a new one."""
        old = plan if isinstance(plan, ChunkPlan) else read_chunk_plan(plan)
        name = "the plan" if isinstance(plan, ChunkPlan) else os.fspath(plan)
        if old.status != "chunked":
            return self.unchanged(old.budget_bytes, old.reason)
        if not old.loss_rows or not old.loss_rows.keys() <= set(self.names):
            raise InputError(
                f"{name} was made for another model, or for inference; chunk this "
                "model with a budget"
            )
        module = self.module(old.loss_rows, old.budget_bytes)
        if module.memplan.measured_bytes_after > old.budget_bytes:
            raise self.refused(module, old.budget_bytes)
        return self.timed(module)


def _loss_of(output: object) -> Tensor:
    """The sum of the scalars in what a model returns that have gradients."""
    leaves, _ = flatten(output)
    found = [
        leaf
        for leaf in leaves
        if isinstance(leaf, Tensor) and leaf.numel() == 1 and leaf.requires_grad
    ]
    if not found:
        raise UsageError(
            "the model is in training mode, and returns no loss; call model.eval() for "
            "inference, or let its forward return the loss"
        )
    total: Tensor = sum(leaf.reshape(()) for leaf in found)
    return total


def _row(name: str, extent: int, rows: int) -> RegionRow:
    return {
        "module": name.rpartition(".")[0],
        "first": "linear",
        "last": "cross_entropy",
        "dimension": 0,
        "extent": extent,
        "step": rows,
        "chunks": -(-extent // rows),
        "operators": 2,
        "depth": 0,
        "line": "",
    }
