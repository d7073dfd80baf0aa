"""Shapes, strides and aliases of an operator's results, by torch's own rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.graph.program import (
    Argument,
    Bound,
    Meta,
    Metas,
    Op,
    Program,
    Ref,
    Roots,
    key_of,
    mapped,
)

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

RESHAPES = {"view", "view_as", "reshape", "reshape_as", "_unsafe_view", "flatten"}

Key = tuple[Callable[..., object], Hashable, tuple[Metas, ...]]


class Inferred(NamedTuple):
    """One result: its meta, and the operand it shares memory with (or -1), or the
    earlier result of the same operator (counted from -2 downwards)."""

    meta: Meta
    alias: int


Known = dict[Key, Inferred | tuple[Inferred, ...]]


class ShapeError(Exception):
    """torch refuses an operator on operands of these shapes."""


class Inference:
    """Runs operators on tensors without data, and caches what they return."""

    def __init__(self, operators: Inference | None = None) -> None:
        """operators: one that shares what it knows of torch's operators. What others
        return is never shared: they may hold weights, which it would keep."""
        self._operators: Known = operators._operators if operators else {}
        self._others: Known = {}
        self._mode: FakeTensorMode | None = None

    def add(self, program: Program, op: Op) -> None:
        """Enter the metas and roots of `op`'s result into `program`.

        Raises ShapeError if torch refuses the operator on these shapes, or if a result
        is not a tensor.
        """
        import torch

        if op.target is operator.getitem:
            source, index = op.args
            program.metas[op.name] = program.metas[source.name][index]
            program.roots[op.name] = program.roots[source.name][index]
            return
        names = op.operands()
        args = mapped((op.args, op.kwargs), lambda at: _number(at, program))
        key = (op.target, _frozen(args), tuple(program.metas[name] for name in names))
        shared = isinstance(op.target, torch._ops.OpOverload)
        known = self._operators if shared else self._others
        # Aliases of one another among the operands do not matter to shapes.
        found = known.get(key)
        if found is None:
            found = known[key] = self._run(program, op.target, args, names)
        _enter(program, op.name, names, found)

    def _run(
        self,
        program: Program,
        target: Callable[..., Any],
        args: Argument,
        names: list[str],
    ) -> Inferred | tuple[Inferred, ...]:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        metas = {name: program.metas[name] for name in names}
        # Fake tensors give dimensions of length 1 other strides than reshapes of real
        # ones do, and strides choose kernels. Tensors on the meta device do not.
        if key_of(target).removeprefix("aten.") in RESHAPES:
            given = {name: _empty(meta, "meta") for name, meta in metas.items()}
            found = _results(target, args, names, given)
            assert isinstance(found, Inferred)
            device = program.metas[names[0]].device
            return found._replace(meta=found.meta._replace(device=device))
        if _is_pure(target) and any(map(_is_ambiguous, metas.values())):
            # Fake tensors pass over such strides. They have the last word where a value
            # of 1 is not valid, or elements share memory.
            with suppress(ShapeError, RuntimeError):
                given = {name: _ones(meta) for name, meta in metas.items()}
                return _results(target, args, names, given)
        if self._mode is None:
            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            given = {name: _empty(meta, None) for name, meta in metas.items()}
            if target is torch.ops.aten.batch_norm.default:
                filled = mapped(args[0], lambda ref: given[ref.name])
                if _scales(*filled[:6]):
                    target, args = torch.ops.aten.neg.default, (args[0][:1], {})
            return _results(target, args, names, given)


def _results(
    target: Callable[..., Any],
    args: Argument,
    names: list[str],
    given: Mapping[str, torch.Tensor | tuple[object, ...]],
) -> Inferred | tuple[Inferred, ...]:
    """What an operator returns on these tensors."""
    import torch

    filled, keywords = mapped(args, lambda ref: given[ref.name])
    try:
        with torch.no_grad():
            result = target(*filled, **keywords)
    except Exception as error:  # the kinds that torch raises are not specified
        raise ShapeError(f"{key_of(target)}: {error}") from error
    owners = {_storage(given[name]): i for i, name in enumerate(names)}
    several = isinstance(result, tuple | list)
    found = []
    for position, tensor in enumerate(result if several else (result,)):
        if not isinstance(tensor, torch.Tensor):
            raise ShapeError(f"{key_of(target)}: a result is not a tensor")
        alias = owners.setdefault(_storage(tensor), -2 - position)
        found.append(Inferred(meta_of(tensor), alias))
    return tuple(found) if several else found[0]


def _is_pure(target: Callable[..., Any]) -> bool:
    """Whether it may be run to see what it returns: an operator of torch or a function
    of memplan that draws no random numbers and writes to no operand."""
    import torch

    if not isinstance(target, torch._ops.OpOverload):
        return str(getattr(target, "__module__", "")).startswith("memplan.")
    return target.namespace == "aten" and not (
        target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    )


def _is_ambiguous(metas: Metas) -> bool:
    """Whether a dimension of length 1 of images or volumes lies neither where rows have
    it nor where channels last have it: kernels differ in where their results have it
    then, and convolutions in what they copy."""
    if not isinstance(metas, Meta):
        return any(map(_is_ambiguous, metas))
    shape, strides, _, device = metas
    rank = len(shape)
    if device != "cpu" or rank not in (4, 5) or 1 not in shape:
        return False
    orders = [tuple(range(rank))]
    if shape[1] > 1 and max(shape[2:]) > 1:
        orders.append((0, *range(2, rank), 1))
    return not any(
        all(strides[a] >= strides[b] * shape[b] for a, b in pairwise(order))
        for order in orders
    )


def _enter(
    program: Program,
    name: str,
    names: list[str],
    found: Inferred | tuple[Inferred, ...],
) -> None:
    if isinstance(found, Inferred):
        program.metas[name] = found.meta
        program.roots[name] = _root(program, names, found.alias, name)
        return
    program.metas[name] = tuple(each.meta for each in found)
    program.roots[name] = tuple(
        _root(program, names, each.alias, f"{name}[{-2 - each.alias}]")
        for each in found
    )


def _root(program: Program, names: list[str], alias: int, own: str) -> Roots:
    return program.roots[names[alias]] if alias >= 0 else own


def _empty(metas: Metas, device: str | None) -> torch.Tensor | tuple[object, ...]:
    """A tensor, or several, without data; None for device: each on its own."""
    import torch

    if not isinstance(metas, Meta):
        return tuple(_empty(each, device) for each in metas)
    return torch.empty_strided(
        metas.shape, metas.strides, dtype=metas.dtype, device=device or metas.device
    )


def _ones(metas: Metas) -> torch.Tensor | tuple[object, ...]:
    """Real tensors, with values that are numbers and indices that mostly exist."""
    if not isinstance(metas, Meta):
        return tuple(map(_ones, metas))
    tensor = _empty(metas, None)
    assert not isinstance(tensor, tuple)
    return tensor.fill_(1)


def _storage(tensor: torch.Tensor | tuple[object, ...]) -> int | None:
    if isinstance(tensor, tuple):
        return None
    return int(tensor.untyped_storage()._cdata)


def meta_of(tensor: torch.Tensor) -> Meta:
    """The Meta of a tensor, real or fake, whose sizes are plain integers."""
    return Meta(
        tuple(map(int, tensor.shape)),
        tuple(map(int, tensor.stride())),
        tensor.dtype,
        str(tensor.device),
    )


def _scales(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
) -> bool:
    """Whether a normalisation does no more than multiply and add, of fitting sizes and
    one type. Its result then lies as a negation's does, among fake tensors, which take
    longer to find that out."""
    vectors = [each for each in (weight, bias, mean, var) if each is not None]
    fitting = all(each.shape == x.shape[1:2] for each in vectors)
    plain = all(each.dtype == x.dtype for each in vectors) and x.is_floating_point()
    return not training and x.dim() > 1 and mean is not None and fitting and plain


def _number(value: Ref | Bound, program: Program) -> Argument:
    return value.at(program.ranges) if isinstance(value, Bound) else value


def _frozen(value: Argument) -> Hashable:
    """`value` as a key of a dict: it distinguishes types and omits names of values."""
    if isinstance(value, Ref):
        return Ref
    if isinstance(value, tuple | list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in sorted(value.items()))
    return type(value).__name__, repr(value)
