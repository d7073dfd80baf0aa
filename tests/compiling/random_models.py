"""Models made at random, of every operator that a rule knows, of views and of writes.

All values have the shape (4, 6). Some are views of others, also of the input; writes
in place change only what is not the input's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from memplan.graph.program import mapped
from tests.chunking.random_programs import exportable
from tests.chunking.rules.families import FAMILIES
from tests.chunking.rules.rule_check import Sample

SHAPE, COUNT = (4, 6), 24

# Of one value, each makes another; the results of VIEWS may lie in their operand.
ONE: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: x.relu(),
    "tanh": lambda x: x.tanh(),
    "scaled": lambda x: x * 0.5 + 1,
    "softmax": lambda x: x.softmax(-1),
    "columns": lambda x: x.log_softmax(0),
    "halves": lambda x: torch.cat(x.split(3, 1)[::-1], 1),
    "normal": lambda x: nn.functional.layer_norm(x, (6,)),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "largest": lambda x: x.max(1, keepdim=True).values.expand(4, 6) + x,
    "masked": lambda x: x.masked_fill(x > 0, 0.25),
    "whole": lambda x: (x * 3).to(torch.int64).to(x.dtype) / 3,
    "added": lambda x: x.clone().add_(1),
    "window": lambda x: torch.cat((x, x + 1), 1)[:, 3:9],
    "part": lambda x: x.repeat(2, 1).chunk(2)[1],
    "unbound": lambda x: torch.stack((x, x * 2)).unbind(0)[1],
    "unfolded": lambda x: x.unfold(0, 4, 1).squeeze(0).t() * 2,
    "column-major": lambda x: x.t().clone(memory_format=torch.contiguous_format).t(),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "mixed": lambda x, y: x @ y.t() @ y,
    "batched": lambda x, y: (
        (x.reshape(2, 2, 6) @ y.reshape(2, 6, 2)).repeat(1, 1, 3).reshape(4, 6)
    ),
    "stacked": lambda x, y: torch.stack((x, y)).sum(0),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "same": lambda x: x,
    "again": lambda x: x.view_as(x),
    "turned": lambda x: x.t().contiguous().t(),
    "reshaped": lambda x: x.t().reshape(4, 6),
    "flat": lambda x: x.reshape(-1).view(2, 2, 6).flatten(0, 1),
    "crossed": lambda x: x.reshape(2, 2, 6).transpose(0, 1).reshape(4, 6),
}
# Each writes to its first operand, whose views see that.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "relu_": lambda x, _: x.relu_(),
    "rows_": lambda x, _: x[1:3].mul_(0.5),
    "turned_": lambda x, _: x.t().clamp_(-1, 1),
    "every fifth_": lambda x, _: x.reshape(-1)[::5].fill_(0.25),
    "copied_": lambda x, _: x[:, :3].copy_(x[:, 3:]),
    "masked_": lambda x, y: x.masked_fill_(y > 1, 0.5),
    "diagonal_": lambda x, _: x.diagonal().zero_(),
    "put_": lambda x, y: x.index_copy_(0, torch.tensor([2, 0]), y[:2]),
}
NAMED = [*ONE, *TWO, *VIEWS, *WRITES]


@dataclass(frozen=True)
class Made:
    """A model as data.

    steps: an operator's name, or the number of a sample of a rule; and the values that
    it takes. loops: see `with_loops`. kernels: of convolutions.
    """

    steps: list[tuple[str | int, int, int]]
    outputs: list[int]
    dtype: torch.dtype = torch.float32
    loops: tuple[tuple[int, int, int], ...] = ()
    kernels: tuple[str, ...] = ()


def models(steps: int, **more: Any) -> st.SearchStrategy[Made]:
    """Models of up to so many operators."""
    small = st.integers(0, 30)
    names = st.one_of(st.sampled_from(NAMED), st.integers(0, 9999))
    return st.builds(
        Made,
        st.lists(st.tuples(names, small, small), max_size=steps),
        st.lists(small, min_size=1, max_size=4),
        st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
        **more,
    )


@functools.cache
def samples() -> list[Sample]:
    """Calls of all operators that have a rule and take and give numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        every = [each for family in FAMILIES for each in family()]
        return [exportable(each) for each in every if _is_usable(each)]


def _is_usable(sample: Sample) -> bool:
    if not isinstance(sample.target, torch._ops.OpOverload) or not sample.data:
        return False
    random = torch.Tag.nondeterministic_seeded in sample.target.tags
    if random or not _numbers(sample) or not _parts(sample.result):
        return False
    before = [each.clone() for each in map(sample.tensors.get, _numbers(sample))]
    sample.target(*sample.args, **sample.kwargs)
    after = map(sample.tensors.get, _numbers(sample))
    return all(map(_same, before, after))  # else it updates statistics


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _numbers(sample: Sample) -> list[str]:
    """The tensors among a call's operands that a value can stand for."""
    return [
        name
        for name, each in sample.tensors.items()
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel()
    ]


def _parts(result: Any) -> list[Any]:
    several = isinstance(result, tuple | list)
    parts = result if several else [result]
    return [
        each
        for each in parts
        if isinstance(each, torch.Tensor) and each.numel() and not each.is_complex()
    ]


class Model(nn.Module):
    """Values in a list: each step appends one, made of earlier ones.

    rounding: every new value is this much off, relative to it, at random.
    """

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made, self.rounding = made, 0.0
        self.linear = nn.Linear(6, 6, dtype=made.dtype)
        for i, (name, *_) in enumerate(made.steps):
            if isinstance(name, int):
                for own, tensor in sample_of(name).tensors.items():
                    self.register_buffer(f"{own}_{i}", tensor)

    def forward(self, x: Any) -> Any:
        values, fresh = [x, self._rounded(self.linear(x))], [False, True]
        for step, (name, *at) in enumerate(self.made.steps):
            i, j = (each % len(values) for each in at)
            one, other = values[i], values[j]
            is_fresh = True
            if isinstance(name, int):
                found = self._sampled(step, sample_of(name), one, other)
            elif name in ONE:
                found = ONE[name](one)
            elif name in TWO:
                found = TWO[name](one, other)
            elif name in VIEWS:
                found, is_fresh = VIEWS[name](one), fresh[i]
            else:
                found = one if fresh[i] else one.clone()
                WRITES[name](found, other.clone())
            if name not in VIEWS:
                self._rounded(found)
            values.append(found)
            fresh.append(is_fresh)
        return [values[i % len(values)] for i in self.made.outputs]

    def _rounded(self, value: Any) -> Any:
        if self.rounding:
            value.mul_(1 + self.rounding * torch.randn_like(value))
        return value

    def _sampled(self, step: int, sample: Sample, one: Any, other: Any) -> Any:
        """A sample's call with the values in the places of its first operands."""
        given = {name: getattr(self, f"{name}_{step}") for name in sample.tensors}
        for name, value in zip(_numbers(sample), (one, other), strict=False):
            shape, dtype = sample.tensors[name].shape, sample.tensors[name].dtype
            given[name] = _resized(value, shape.numel()).view(shape).to(dtype)
        op = sample.call.op
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: given[ref.name])
        parts = _parts(sample.target(*args, **kwargs))
        flat = torch.cat([each.reshape(-1).to(one.dtype) for each in parts])
        return _resized(flat, COUNT).view(SHAPE).nan_to_num(0.5).clamp(-4, 4)


def _resized(value: Any, count: int) -> Any:
    """So many elements of a value, repeated where it has fewer."""
    flat = value.reshape(-1)
    return flat.repeat(-(-count // flat.numel()))[:count]


def sample_of(number: int) -> Sample:
    return samples()[number % len(samples())]


def coarsest(made: Made) -> torch.dtype:
    """The type of the model's values, or of an operator, that has the fewest bits."""
    numbers = [name for name, *_ in made.steps if isinstance(name, int)]
    tensors = (each for at in numbers for each in sample_of(at).tensors.values())
    used = {each.dtype for each in tensors if isinstance(each, torch.Tensor)}
    floats = [each for each in used if each.is_floating_point]
    return max([made.dtype, *floats], key=lambda each: torch.finfo(each).eps)
