"""Runs a call in slices, as its rule says, and compares with the whole call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from memplan.chunking.rules.flow import Call, Flow, Slice
from memplan.chunking.rules.table import flow
from memplan.graph.infer import meta_of
from memplan.graph.program import Bound, Op, Ref, Window, mapped

LOOP = "loop"


@dataclass
class Sample:
    """One call on real tensors, and the dimensions of its result that can be sliced.

    close: whether the arithmetic may differ in the last bits. data: whether the result
    has defined elements.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dims: tuple[int, ...] = ()
    close: bool = False
    data: bool = True

    def __post_init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        args, kwargs = self._named((self.args, self.kwargs))
        self.result = self.target(*self.args, **self.kwargs)
        self.call = Call(
            Op("result", self.target, args, kwargs),
            tuple(_meta(tensor) for tensor in self.tensors.values()),
            _meta(self.result),
            LOOP,
        )

    def _named(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) or (
            self.target is operator.getitem and isinstance(value, list)
        ):
            name = f"x{len(self.tensors)}"
            self.tensors[name] = value
            return Ref(name)
        if isinstance(value, tuple | list):
            return type(value)(self._named(item) for item in value)
        if isinstance(value, dict):
            return {key: self._named(item) for key, item in value.items()}
        return value

    def possible(self) -> tuple[int, ...]:
        """Dimensions that the rule can slice."""
        dims = range(len(self.call.shape))
        return tuple(dim for dim in dims if flow(self.call, Slice(dim)) is not None)


def starts(size: int, dim: int) -> Iterator[tuple[Slice, int]]:
    """Slices of a dimension of `size`, each with the extent of a loop that makes it."""
    yield Slice(dim), size
    yield Slice(dim, Fraction(1), 1, 1), size
    yield Slice(dim, Fraction(1), 3, 0), size
    if size % 2 == 0:
        yield Slice(dim, Fraction(2)), size // 2
        yield Slice(dim, Fraction(2), 2, 2), size // 2
    else:
        yield Slice(dim, Fraction(2), 1, 1), size // 2
    yield Slice(dim, Fraction(size, 12)), 12


def check(sample: Sample) -> int:
    """Compares every slice of every dimension; the number of chunks compared."""
    compared = 0
    for dim, size in enumerate(sample.call.shape):
        for out, extent in starts(size, dim) if size > 1 else ():
            made = flow(sample.call, out)
            if made is None:
                continue
            unit = granule(made, out)
            if unit is None or any(extent * r % 1 for r in _ratios(made, out)):
                continue
            for step in {unit, 3 * unit, -(-extent // 2 // unit) * unit}:
                for start in range(0, extent, max(step, unit)):
                    stop = min(extent, start + max(step, unit))
                    compare(sample, made, out, (start, stop))
                    compared += 1
    return compared


def granule(made: Flow, out: Slice) -> int | None:
    """The smallest step at which all windows have whole ends."""
    return math.lcm(*(ratio.denominator for ratio in _ratios(made, out)))


def _ratios(made: Flow, out: Slice) -> list[Fraction]:
    needs = [need.ratio for need in made.needs if need is not None]
    return [out.ratio, *map(Fraction, needs)]


def compare(sample: Sample, made: Flow, out: Slice, ends: tuple[int, int]) -> None:
    """One iteration's result against the same window of the whole result."""
    call = sample.call
    assert len(made.needs) == len(call.operands)
    values = {
        name: cut(tensor, need, ends)
        for (name, tensor), need in zip(sample.tensors.items(), made.needs, strict=True)
    }
    target = made.target or call.op.target
    args = call.op.args if made.args is None else made.args
    kwargs = call.op.kwargs if made.kwargs is None else made.kwargs

    def fill(value: Any) -> Any:
        if isinstance(value, Bound):
            return value.at({LOOP: ends})
        return values[value.name]

    args, kwargs = mapped((args, kwargs), fill)
    got = target(*args, **kwargs)
    expected = cut(sample.result, out, ends)
    where = f"{call.op.key} {call.shape} {out} {ends}"
    several = isinstance(got, tuple | list)
    for a, b in zip(
        got if several else [got], expected if several else [expected], strict=True
    ):
        if b is None:
            continue
        assert a.shape == b.shape, f"{where}: {a.shape} for {b.shape}"
        assert a.dtype == b.dtype, where
        if not sample.data:
            continue
        if sample.close:
            low = a.dtype.itemsize < 4
            tolerance = 1e-2 if low else 1e-5
            assert torch.allclose(a, b, tolerance, tolerance, equal_nan=True), where
        else:
            assert torch.equal(
                torch.nan_to_num(a.contiguous()), torch.nan_to_num(b.contiguous())
            ), where


def cut(value: Any, need: Slice | None, ends: tuple[int, int]) -> Any:
    """The window of a tensor that an iteration holds; of each, if several.

    Of several, those without that dimension (statistics left empty) are None.
    """
    if need is None:
        return value
    if isinstance(value, tuple | list):
        first = value[0].shape[need.dim]
        return type(value)(
            cut(each, need, ends)
            if each.dim() > need.dim and each.shape[need.dim] == first
            else None
            for each in value
        )
    window: Window = need.window(LOOP, tuple(value.shape))
    low, high = window.at({LOOP: ends})
    assert 0 <= low < high, f"an empty window [{low}, {high}) for {need} at {ends}"
    return value.narrow(need.dim, low, high - low)


def _meta(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_meta, value))
    return meta_of(value)
