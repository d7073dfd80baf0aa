"""Logits that are not computed until it is known who needs them.

Within `Deferring`, the product of a hidden state and a wide weight is a `Deferred`: a
tensor with the shape and dtype of the logits, and no data. Views of its rows, and
functions of each element or of each row, stay deferred. A cross-entropy of them runs
in slices (`memplan.chunking.sliced_loss`). Everything else gets the logits, made then
as the model would have made them, once, so that views of one another share memory as
ever.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812, as everywhere in torch's own code
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from memplan.chunking.sliced_loss import (
    REDUCTIONS,
    Cast,
    Loss,
    default_rows,
    in_slices,
    product_dtype,
)

Function = Callable[..., Any]
NOT_DEFERRED: Any = object()
WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
SAMPLED = 64  # about as many rows, and columns, of a weight are compared
STALE = (
    "logits that memplan.chunk left out are asked for after what they are made of has "
    "changed; ask for them before the optimizer's step, or train the original model, "
    "which is at .model"
)


@dataclass
class Uses:
    """What became of the projections: weights (by id) whose logits went to a loss in
    slices, and those that something else needed, with the function's name; the most
    rows of logits in slices."""

    sliced: dict[int, Tensor] = field(default_factory=dict)
    whole: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    rows: int = 0


class Source(NamedTuple):
    """A projection: weight [classes, width], bias [classes] or None; owner: the
    parameter that the weight is or is a view of; uses: where to note what becomes
    of it; rows: of a slice; autocast: its dtype, and whether it is on."""

    weight: Tensor
    bias: Tensor | None
    owner: Tensor
    uses: Uses
    rows: int
    autocast: tuple[torch.dtype, bool]


class Deferred(Tensor):  # type: ignore[misc]
    """Logits of `hidden`, [..., width], with what is done to each row.

    before: functions of logits that come first, row by row. classes: the dimension of
    the classes, 1 or -1. make: computes the tensor.
    """

    source: Source
    hidden: Tensor
    before: tuple[Function, ...]
    classes: int
    _root: Deferred | None  # no circle: what it holds would outlive it
    _whole: Tensor | None
    _derived: list[weakref.ref[Deferred]]

    @staticmethod
    def __new__(
        cls, like: Tensor, source: Source, hidden: Tensor, make: Function
    ) -> Deferred:
        """like: a tensor on the meta device of its shape, strides and dtype."""
        self: Deferred = Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            dtype=like.dtype,
            device=hidden.device,
        )
        self.source, self.hidden, self._root = source, hidden, None
        self.before, self.classes = (), -1
        self._make, self._whole, self._derived = make, None, []
        return self

    def begin(self) -> None:
        """Note what it is made of, to see later whether that has changed."""
        self._versions, self._sample = self._now(), self._sampled().clone()

    @property
    def root(self) -> Deferred:
        """The projection that it is derived from, or itself."""
        return self if self._root is None else self._root

    def _now(self) -> list[tuple[int, int]]:
        given = (self.hidden, self.source.weight, self.source.bias)
        kept = [each for each in given if each is not None]
        return [(each._version, each.data_ptr()) for each in kept]

    def _sampled(self) -> Tensor:
        """Some of the weight: fused optimizers leave its version as it is."""
        rows, columns = (max(1, size // SAMPLED) for size in self.source.weight.shape)
        return self.source.weight.detach()[::rows, ::columns]

    def check(self) -> None:
        """Raise RuntimeError if what it is made of has changed."""
        root = self.root
        same = root._versions == root._now() and torch.equal(
            root._sample.nan_to_num(), root._sampled().nan_to_num()
        )
        if not same:
            raise RuntimeError(STALE)

    def whole(self, reason: str) -> Tensor:
        """The tensor itself; reason: who needs it."""
        if self._whole is None:
            self.check()
            owner = self.source.owner
            self.source.uses.whole.setdefault(id(owner), (owner, reason))
            with torch.inference_mode(False), torch.enable_grad():
                self._whole = self._make(reason)
        return self._whole

    def before_write(self, reason: str) -> None:
        """Make what is derived from it, before something writes to its memory."""
        for each in self.root._derived:
            if (made := each()) is not None:
                made.whole(reason)

    @property
    def is_free(self) -> bool:
        """Whether nothing has needed the logits so far."""
        return self.root._whole is None

    def derived(
        self,
        function: Function,
        *args: Any,
        like: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """What a function makes of it, deferred; NOT_DEFERRED if these are no numbers
        of its kind. args, kwargs: those after the first; like: as the result is, where
        a tensor on the meta device does not show it."""
        if like is None:
            meta = torch.empty_strided(
                self.shape, self.stride(), dtype=self.dtype, device="meta"
            )
            like = function(meta, *args, **kwargs)

        if not like.is_floating_point():
            return NOT_DEFERRED

        def again(whole: Tensor) -> Tensor:
            return function(whole, *args, **kwargs)

        def build() -> Deferred:
            return Deferred(
                like, self.source, self.hidden, lambda reason: again(self.whole(reason))
            )

        made: Deferred = _Linked.apply(build, again, self)
        made.before, made.classes, made._root = self.before, self.classes, self.root
        self.root._derived.append(weakref.ref(made))
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" or name in ABOUT:
            attribute = getattr(getattr(func, "__self__", None), "__name__", name)
            if attribute in ABOUT:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
        first = args[0] if args else None
        possible = torch.is_grad_enabled() or name == "argmax"
        if isinstance(first, Deferred) and first.is_free and possible and name in RULES:
            found = RULES[name](first, func, args[1:], kwargs)
            if found is not NOT_DEFERRED:
                return found
        reason = name or str(func)
        if _writes(name) or "out" in kwargs:
            for each in tree_leaves((args, kwargs)):
                if isinstance(each, Deferred):
                    each.before_write(reason)
        args, kwargs = tree_map(
            lambda x: x.whole(reason) if isinstance(x, Deferred) else x, (args, kwargs)
        )
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Function,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise NotImplementedError(f"{func} takes logits that memplan.chunk left out")


class _Linked(torch.autograd.Function):  # type: ignore[misc]
    """A deferred tensor's place in the graph, for gradients that reach the tensor as it
    is, from hooks and other functions with a backward pass of their own."""

    @staticmethod
    def forward(ctx: Any, build: Function, again: Function, *given: Any) -> Any:
        """build: makes the deferred tensor; again: its values of the `given` ones."""
        ctx.again = again
        ctx.save_for_backward(*given)
        return build()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[2:]
        given = [
            each if each is None else each.detach().requires_grad_(needs)
            for each, needs in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            made = ctx.again(*given)
        wanted = [each for each, needs in zip(given, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(made, wanted, gradient, allow_unused=True))
        return (None, None, *(next(found) if needs else None for needs in needed))


Rest = tuple[Any, ...]
Options = dict[str, Any]
ABOUT = {
    *("shape", "size", "dim", "ndim", "numel", "nelement", "__len__", "stride"),
    *("dtype", "element_size", "itemsize", "nbytes", "is_floating_point", "is_complex"),
    *("device", "get_device", "layout", "is_cuda", "is_cpu", "is_sparse", "is_nested"),
    *("requires_grad", "is_contiguous"),
}


def _same_rows(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """Another shape of the same rows."""
    if x.classes != -1:
        return NOT_DEFERRED
    made = x.derived(func, *rest, **options)
    same = made is not NOT_DEFERRED and made.dtype == x.dtype
    if not same or made.shape[-1:] != x.shape[-1:] or made.numel() != x.numel():
        return NOT_DEFERRED
    made.hidden = x.hidden.reshape(*made.shape[:-1], x.hidden.shape[-1])
    return made


def _chosen(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """Some of the rows, by an index."""
    (index,) = rest
    items = index if isinstance(index, tuple) else (index,)
    plain = all(
        isinstance(each, slice | int | type(...) | None) and not isinstance(each, bool)
        for each in items
    )
    masks = [each for each in items if isinstance(each, Tensor)]
    if x.classes != -1 or not (plain or (len(items) == 1 and masks)):
        return NOT_DEFERRED
    if any(isinstance(each, Deferred) for each in masks):
        return NOT_DEFERRED
    taken = sum(
        each.dim() if isinstance(each, Tensor) and each.dtype == torch.bool else 1
        for each in items
        if each is not None and each is not ...
    )
    after = items[-1] is not ... and any(each is ... for each in items)
    if (after or taken >= x.dim()) and items[-1] != slice(None):
        return NOT_DEFERRED
    hidden = x.hidden[index]
    if masks:
        shape = *hidden.shape[:-1], x.shape[-1]
        like = torch.empty(shape, dtype=x.dtype, device="meta")
        made = x.derived(func, masks[0].clone(), like=like)
    else:
        made = x.derived(func, *rest)
    made.hidden = hidden
    return made


def _of_each(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """A function of each element, with numbers or a dtype."""
    others = (*rest, *options.values())
    if not all(isinstance(each, int | float | torch.dtype) for each in others):
        return NOT_DEFERRED
    made = x.derived(func, *rest, **options)
    if made is NOT_DEFERRED:
        return made
    if func.__name__ in CASTS:
        change: Function = Cast(made.dtype)
    else:
        change = partial(_called, func, rest, options)
    made.before = *x.before, change
    return made


CASTS = {"float", "double", "half", "bfloat16", "to"}


def _called(func: Function, rest: Rest, options: Options, logits: Tensor) -> Any:
    return func(logits, *rest, **options)


def _shifted(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """A constant of each class is added."""
    (other,) = rest
    constant = isinstance(other, Tensor) and not other.requires_grad
    if options or x.classes != -1 or not constant or isinstance(other, Deferred):
        return NOT_DEFERRED
    if other.shape[-1:] != x.shape[-1:] or other.numel() != x.shape[-1]:
        return NOT_DEFERRED
    if other.dim() > x.dim() or torch.promote_types(x.dtype, other.dtype) != x.dtype:
        return NOT_DEFERRED
    other = other.clone()  # which the model may change
    like = torch.empty(x.shape, dtype=x.dtype, device="meta")
    made = x.derived(func, other, like=like)
    made.before = *x.before, partial(_called, func, (other.flatten(),), {})
    return made


def _argmax(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """The likeliest class of each row, whose logits are made for that in slices."""
    given = dict(zip(("dim", "keepdim"), rest, strict=False)) | options
    dim = given.get("dim")
    if dim is None or (dim - x.classes) % x.dim() or given.get("keepdim"):
        return NOT_DEFERRED
    x.check()
    weight, bias, source = x.source.weight, x.source.bias, x.source
    flat = x.hidden.reshape(-1, x.hidden.shape[-1])
    found = []
    with torch.no_grad(), torch.autocast(flat.device.type, *source.autocast):
        for rows in flat.split(source.rows):
            logits = F.linear(rows, weight, bias)
            for change in x.before:
                logits = change(logits)
            found.append(logits.argmax(-1))
    return torch.cat(found).reshape(x.hidden.shape[:-1])


def _log_softmax(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    dim = options.get("dim", rest[0] if rest else None)
    dtype = options.get("dtype")
    if not isinstance(dim, int) or (dim - x.classes) % x.dim() or len(rest) > 1:
        return NOT_DEFERRED
    made = x.derived(torch.log_softmax, dim, dtype=dtype)
    made.before = *x.before, partial(torch.log_softmax, dim=-1, dtype=dtype)
    return made


def _moved(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """Dimensions in another order: classes from the last to the second, or back."""
    count = x.dim()
    sizes = torch.empty(*range(2, 2 + count), device="meta")
    order = [size - 2 for size in func(sizes, *rest, **options).shape]
    second = [0, count - 1, *range(1, count - 1)]
    last = [0, *range(2, count), 1]
    if count < 3 or order != (second if x.classes == -1 else last):
        return NOT_DEFERRED
    made = x.derived(func, *rest, **options)
    made.classes = 1 if x.classes == -1 else -1
    return made


def _loss(x: Deferred, func: Function, rest: Rest, options: Options) -> Any:
    """A loss whose rows are the projection's."""
    if func not in LOSSES:
        return NOT_DEFERRED
    given = inspect.signature(func).bind(x, *rest, **options).arguments
    del given["input"]
    targets, reduction = given.pop("target"), given.pop("reduction", "mean")
    weight = given.get("weight")
    if x.dim() != 2 and x.classes != 1:
        return NOT_DEFERRED
    if (
        given.pop("size_average", None) is not None
        or given.pop("reduce", None) is not None
    ):
        return NOT_DEFERRED
    if any(
        isinstance(t, Deferred) or t.requires_grad
        for t in (targets, weight)
        if t is not None
    ):
        return NOT_DEFERRED
    if targets.is_floating_point() and x.classes == 1:
        targets = targets.movedim(1, -1)
    lead = x.hidden.shape[:-1]
    if targets.shape[: len(lead)] != lead or reduction not in REDUCTIONS:
        return NOT_DEFERRED
    x.check()
    source = x.source
    source.uses.sliced[id(source.owner)] = source.owner
    source.uses.rows = max(source.uses.rows, lead.numel())
    loss = Loss(func, reduction, given, x.before)
    product = x.hidden, source.weight, source.bias
    return in_slices(product, targets, loss, source.rows, x.root.dtype)


LOSSES = {F.cross_entropy, F.nll_loss}


RULES: dict[str, Function] = {
    **dict.fromkeys(("view", "reshape", "flatten", "contiguous"), _same_rows),
    "__getitem__": _chosen,
    **dict.fromkeys(CASTS | {"tanh"}, _of_each),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "div", "__truediv__"), _of_each),
    **dict.fromkeys(("add", "__add__"), _shifted),
    "argmax": _argmax,
    "log_softmax": _log_softmax,
    **dict.fromkeys(("transpose", "permute", "movedim", "swapaxes"), _moved),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _loss),
}
"""What stays deferred, by a function's name: (x, function, its other arguments)."""

PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}


class Deferring(TorchFunctionMode):  # type: ignore[misc]
    """Defers products with wide weights while it is active and gradients are made.

    owners: the ids of the parameters whose products are deferred, and the rows of a
    slice; None: of all that make a row wider. uses: what becomes of them is noted
    there.
    """

    def __init__(self, uses: Uses, owners: Mapping[int, int] | None = None) -> None:
        super().__init__()
        self.uses, self.owners = uses, owners

    def __torch_function__(
        self,
        func: Function,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            each = given["input"], given["weight"], given.get("bias")
            made = self._deferred(func, args, kwargs, *each)
        elif func in PRODUCTS and len(args) == 2 and _is_plain(args[1]):
            transposed = args[1].t() if args[1].dim() == 2 else None
            made = self._deferred(func, args, kwargs, args[0], transposed, None)
        else:
            made = None
        return func(*args, **kwargs) if made is None else made

    def _deferred(
        self,
        func: Function,
        args: Rest,
        kwargs: Options,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Deferred | None:
        if weight is None or weight.dim() != 2 or not torch.is_grad_enabled():
            return None
        owner = weight if isinstance(weight, nn.Parameter) else weight._base
        if owner is None or not (_is_plain(hidden) and _is_plain(weight)):
            return None
        if self.owners is None:
            wanted = isinstance(owner, nn.Parameter) and len(weight) > weight.shape[1]
        else:
            wanted = id(owner) in self.owners
        if not wanted or hidden.dim() < 2 or not weight.is_floating_point():
            return None
        if not (hidden.requires_grad or weight.requires_grad):
            return None
        kind = hidden.device.type
        autocast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        dtype = product_dtype(hidden, weight)
        if dtype is None:  # torch will say that they do not fit
            return None
        shape = *hidden.shape[:-1], len(weight)
        like = torch.empty(shape, dtype=dtype, device="meta")

        def make(_: str) -> Tensor:
            with torch._C.DisableTorchFunction(), torch.autocast(kind, *autocast):
                return func(*args, **kwargs)

        def again(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            with torch._C.DisableTorchFunction(), torch.autocast(kind, *autocast):
                return F.linear(hidden, weight, bias)

        if self.owners is None:
            rows = default_rows(hidden.shape[:-1].numel(), *weight.t().shape)
        else:
            rows = self.owners[id(owner)]
        source = Source(weight, bias, owner, self.uses, rows, autocast)
        made: Deferred = _Linked.apply(
            partial(Deferred, like, source, hidden, make), again, hidden, weight, bias
        )
        made.begin()
        return made


def _writes(name: str) -> bool:
    """Whether a function of this name writes to an operand."""
    return name in WRITES or (name.endswith("_") and not name.endswith("__"))


def _is_plain(value: object) -> bool:
    """Whether it is a tensor of torch's own types, and not deferred itself."""
    return type(value) in {Tensor, nn.Parameter}
