"""The cross-entropy of a projection, in slices of rows: never all logits at once.

Where the loss is one number, a slice's gradients are made right after its loss, from
the same logits, and wait for the backward pass, which scales them. So no product runs
twice. Losses of each row have no common factor: their logits are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812, as everywhere in torch's own code

from memplan.errors import UsageError
from memplan.graph.liveness import log_softmax_written

FEWEST_ROWS = 128  # of a slice: products of fewer rows are slow
EXACT = {torch.float32, torch.float64}
IGNORED = -100  # torch's default for targets that do not count
REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class Cast:
    """A conversion of logits to a dtype."""

    dtype: torch.dtype

    def __call__(self, logits: Tensor) -> Tensor:
        return logits.to(self.dtype)


@dataclass(frozen=True)
class Loss:
    """A loss of logits [rows, classes] and targets, [rows] or [rows, classes].

    function: `cross_entropy` or `nll_loss` of torch. before: functions of logits that
    come first, row by row. options: the loss's, besides reduction.
    """

    function: Callable[..., Tensor]
    reduction: str
    options: dict[str, Any]
    before: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum of the rows' losses; for the reduction "none" each of them."""
        for change in self.before:
            logits = change(logits)
        reduction = "none" if self.reduction == "none" else "sum"
        return self.function(logits, targets, reduction=reduction, **self.options)

    def is_plain(self, targets: Tensor) -> bool:
        """Whether it is a cross-entropy of class numbers and of the logits as they are,
        cast at most."""
        return (
            self.function is F.cross_entropy
            and self.options.get("weight") is None
            and not targets.is_floating_point()
            and all(isinstance(change, Cast) for change in self.before)
        )

    def divisor(self, targets: Tensor) -> Tensor | float:
        """What the sum is divided by: for a mean, the weights of its targets."""
        if self.reduction != "mean":
            return 1.0
        if targets.is_floating_point():
            return float(len(targets))
        counted = targets[targets != self.options.get("ignore_index", IGNORED)]
        weight = self.options.get("weight")
        return (
            counted.new_tensor(len(counted))
            if weight is None
            else weight[counted].sum()
        )


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype | None:
    """The dtype of a linear layer's result; None if it takes no such operands."""
    kind, both = hidden.device.type, {hidden.dtype, weight.dtype}
    if torch.is_autocast_enabled(kind) and torch.float64 not in both:
        return torch.get_autocast_dtype(kind)
    return weight.dtype if len(both) == 1 else None


def default_rows(rows: int, width: int, classes: int) -> int:
    """Rows of a slice whose logits take about what `hidden` takes."""
    return max(FEWEST_ROWS, rows * width // max(1, classes))


def chunk_loss(  # noqa: PLR0913 - by name, but four
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    rows: int | None = None,
) -> Tensor:
    """`cross_entropy(linear(hidden, weight, bias), targets)` without all logits.

    hidden: [..., width]. weight: [classes, width]. targets: [...] of class numbers, or
    [..., classes] of probabilities. The other options are those of torch's
    `cross_entropy`. rows: of a slice; by default such that its logits take about as
    much as `hidden`, and at least 128.

    Returns a scalar, or [...] for the reduction "none", with the gradients of the plain
    expression within rounding; the gradients themselves are not differentiable.

    Raises UsageError for shapes that do not fit and for unknown reductions.
    """
    lead, width = hidden.shape[:-1], hidden.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != width:
        raise UsageError(
            f"weight must be [classes, {width}], as hidden is [..., {width}], not "
            f"{list(weight.shape)}"
        )
    if product_dtype(hidden, weight) is None:
        raise UsageError(f"hidden is of {hidden.dtype}, weight of {weight.dtype}")
    if targets.requires_grad:
        raise UsageError("targets must not require a gradient")
    likely = targets.shape == (*lead, len(weight)) and targets.is_floating_point()
    if targets.shape != lead and not likely:
        raise UsageError(
            f"targets must be {list(lead)}, as hidden is {list(hidden.shape)}, not "
            f"{list(targets.shape)}"
        )
    if reduction not in REDUCTIONS:
        raise UsageError(
            f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}"
        )
    if rows is not None and rows < 1:
        raise UsageError(f"rows must be 1 or more, not {rows}")
    options = {"weight": class_weight, "label_smoothing": label_smoothing}
    if not likely:
        options["ignore_index"] = ignore_index
    loss = Loss(F.cross_entropy, reduction, options)
    return in_slices((hidden, weight, bias), targets, loss, rows)


def in_slices(
    product: tuple[Tensor, Tensor, Tensor | None],
    targets: Tensor,
    loss: Loss,
    rows: int | None = None,
    cast: torch.dtype | None = None,
) -> Tensor:
    """The loss of a linear layer; see `chunk_loss` for the shapes.

    product: hidden, weight and bias. cast: the layer's dtype; None: as autocast is now.
    """
    hidden, weight, bias = product
    lead, width = hidden.shape[:-1], hidden.shape[-1]
    flat = hidden.reshape(-1, width)
    wanted = targets.reshape(len(flat), *targets.shape[len(lead) :])
    wanted = wanted if wanted.is_floating_point() else wanted.long()
    rows = rows or default_rows(len(flat), width, len(weight))
    kind = hidden.device.type
    autocast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    cast = cast or product_dtype(hidden, weight) or weight.dtype
    task = _Task(wanted, loss, rows, cast, autocast)
    found: Tensor = _Sliced.apply(flat, weight, bias, task)
    return found.reshape(lead) if loss.reduction == "none" else found


@dataclass(frozen=True)
class _Task:
    """targets, loss, rows, cast: as `in_slices` takes them. autocast: its dtype, and
    whether it is on where the loss is made."""

    targets: Tensor
    loss: Loss
    rows: int
    cast: torch.dtype
    autocast: tuple[torch.dtype, bool]


class _Sliced(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, task: _Task
    ) -> Tensor:
        work = _Work(task, hidden, weight, bias)
        each = task.loss.reduction == "none"
        # Small gradients in float16 need the factor of the backward pass.
        ctx.task, ctx.late = task, each or task.cast == torch.float16
        if ctx.late:
            ctx.save_for_backward(hidden, weight, bias, task.targets)
            return work.each() if each else work.total((False, False, False))[0]
        found, gradients = work.total(ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        return found

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "gradients of a loss in slices have no gradients (create_graph=True)"
            )
        found = list(ctx.saved_tensors)
        if ctx.late:
            work = _Work(ctx.task, *found[:3])
            found = work.gradients(upstream, ctx.needs_input_grad[:3])
        elif not _is_one(upstream):
            found = [None if x is None else x * upstream.to(x.dtype) for x in found]
        return (*found, None)


def _is_one(factor: Tensor) -> bool:
    """Whether a factor can be left out; on a GPU, asking would take longer."""
    if factor.device.type != "cpu" or torch._C._functorch.is_batchedtensor(factor):
        return False
    return bool(factor.item() == 1)


class _Work:
    """A task on a hidden state, a weight and a bias, slice by slice."""

    def __init__(
        self, task: _Task, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> None:
        self.kind, self.autocast = hidden.device.type, task.autocast
        self.targets, self.loss, self.rows = task.targets, task.loss, task.rows
        self.given = hidden, weight, bias
        self.hidden, self.weight = hidden.to(task.cast), weight.to(task.cast)
        self.bias = None if bias is None else bias.to(task.cast)

    def slices(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Each slice's rows, its logits and its targets."""
        for start in range(0, len(self.hidden), self.rows):
            at = slice(start, start + self.rows)
            with torch.autocast(self.kind, enabled=False):
                logits = F.linear(self.hidden[at], self.weight, self.bias)
            yield at, logits, self.targets[at]

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.kind, *self.autocast):
            return self.loss(logits, targets)

    def each(self) -> Tensor:
        """The loss of each row."""
        found = [self.value(logits, targets) for _, logits, targets in self.slices()]
        return torch.cat(found) if found else self.value(*self.nothing())

    def nothing(self) -> tuple[Tensor, Tensor]:
        """No logits, and no targets."""
        return self.hidden.new_empty(0, len(self.weight)), self.targets[:0]

    def total(self, wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        """The loss and its gradients: those `wanted` of hidden, weight and bias."""
        total = self.hidden.new_zeros((), dtype=_exact(self.hidden.dtype))
        divisor = total + self.loss.divisor(self.targets)
        gradients = _Gradients(self, wanted)
        dtype = self.value(*self.nothing()).dtype
        for at, logits, targets in self.slices():
            if any(wanted):
                value, slope = self.slope(logits, targets, 1 / divisor)
                gradients.add(at, slope)
            else:
                value = self.value(logits, targets)
            total += value
        return (total / divisor).to(dtype), gradients.found()

    def gradients(
        self, upstream: Tensor, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradients of the loss, or of each row's, times `upstream`."""
        gradients = _Gradients(self, wanted)
        if self.loss.reduction != "none":
            exact = upstream.to(_exact(upstream.dtype))
            whole = exact / self.loss.divisor(self.targets)
            upstream = whole.expand(len(self.hidden))
        for at, logits, targets in self.slices():
            gradients.add(at, self.slope(logits, targets, upstream[at])[1])
        return gradients.found()

    def slope(
        self, logits: Tensor, targets: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A slice's loss, and the gradient of its logits, in their memory if it can
        be."""
        if self.loss.is_plain(targets):
            wide = self.value_of(logits)
            if wide.dtype in EXACT:
                value, slope = self.over(wide, targets, upstream)
                return value, slope.to(logits.dtype)
        with torch.enable_grad():
            logits.requires_grad_()
            value = self.value(logits, targets)
            factor = upstream if value.dim() == upstream.dim() else upstream[0]
            (slope,) = torch.autograd.grad(value, logits, factor.to(value.dtype))
        return value.detach(), slope

    def value_of(self, logits: Tensor) -> Tensor:
        """The logits as a plain loss takes them."""
        for change in self.loss.before:
            logits = change(logits)
        narrow = self.autocast[1] and logits.dtype not in EXACT
        return logits.float() if narrow else logits

    def over(
        self, x: Tensor, targets: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The plain loss of logits `x`, and their gradient written over them: softmax
        minus the targets' share."""
        smoothing = self.loss.options.get("label_smoothing", 0.0)
        kept = targets != self.loss.options.get("ignore_index", IGNORED)
        at = targets.where(kept, 0)[:, None]
        x = log_softmax_written(x, 1) if self.kind == "cpu" else x.log_softmax(1)
        losses = (smoothing - 1) * x.gather(1, at)[:, 0]
        if smoothing:
            losses -= smoothing / x.shape[1] * x.sum(1)
        losses = losses.where(kept, 0)
        x.exp_()
        if smoothing:
            x -= smoothing / x.shape[1]
        x.scatter_add_(1, at, x.new_full(at.shape, smoothing - 1))
        x *= upstream.to(x.dtype).where(kept, 0)[:, None]
        return losses if self.loss.reduction == "none" else losses.sum(), x


class _Gradients:
    """Gradients of hidden, weight and bias; the sums over slices at full precision."""

    def __init__(self, work: _Work, wanted: Sequence[bool]) -> None:
        self.work = work
        self.hidden, self.weight, self.bias = (
            torch.zeros_like(x, dtype=_exact(x.dtype) if i else x.dtype)
            if x is not None and wanted[i]
            else None
            for i, x in enumerate(work.given)
        )

    def add(self, at: slice, slope: Tensor) -> None:
        """Add those of a slice, from its logits' gradient."""
        work = self.work
        with torch.autocast(work.kind, enabled=False):
            if self.hidden is not None:
                self.hidden[at] = slope @ work.weight
            if self.bias is not None:
                self.bias += slope.sum(0)
            if self.weight is None:
                return
            if self.weight.dtype == slope.dtype:
                self.weight.addmm_(slope.t(), work.hidden[at])
            else:
                self.weight += slope.t() @ work.hidden[at]

    def found(self) -> list[Tensor | None]:
        """In the dtypes of hidden, weight and bias."""
        pairs = zip((self.hidden, self.weight, self.bias), self.work.given, strict=True)
        return [None if x is None else x.to(given.dtype) for x, given in pairs]


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
