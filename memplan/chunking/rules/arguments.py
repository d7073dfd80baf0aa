"""An operator's arguments by the names in its schema, and the operands among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from memplan.chunking.rules.flow import Call, Flow, Slice
from memplan.graph.program import refs


@cache
def parameters(target: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of a target's parameters, in order; None for no default."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return tuple((each.name, each.default_value) for each in schema.arguments)
    return tuple(
        (name, None if each.default is each.empty else each.default)
        for name, each in inspect.signature(target).parameters.items()
    )


def given(call: Call) -> dict[str, Any]:
    """All arguments by name, those left out at their defaults."""
    names = parameters(call.op.target)
    values = dict(names)
    values.update(
        (name, value) for (name, _), value in zip(names, call.op.args, strict=False)
    )
    values.update(call.op.kwargs)
    return values


def places(call: Call) -> dict[str, tuple[int, ...]]:
    """For each argument given, where its values stand among the call's operands."""
    names = [name for name, _ in parameters(call.op.target)]
    passed = [*zip(names, call.op.args, strict=False), *call.op.kwargs.items()]
    found: dict[str, tuple[int, ...]] = {}
    count = 0
    for name, value in passed:
        width = sum(1 for _ in refs(value))
        found[name] = tuple(range(count, count + width))
        count += width
    return found


def shape(call: Call, name: str) -> tuple[int, ...] | None:
    """The shape of the tensor that is the argument `name`; None if none is given."""
    place = places(call).get(name, ())
    return tuple(call.operands[place[0]].shape) if place else None


def needing(call: Call, slices: Mapping[str, Slice | None]) -> tuple[Slice | None, ...]:
    """`needs` with the named arguments sliced, if they are given; all others whole."""
    needs: list[Slice | None] = [None] * len(call.operands)
    for name, place in places(call).items():
        for position in place:
            needs[position] = slices.get(name)
    return tuple(needs)


def changed(
    call: Call, needs: Iterable[Slice | None], changes: Mapping[str, Any]
) -> Flow:
    """The same operator with some arguments replaced."""
    names = [name for name, _ in parameters(call.op.target)]
    args = list(call.op.args)
    kwargs = dict(call.op.kwargs)
    for name, value in changes.items():
        position = names.index(name)
        if position < len(args):
            args[position] = value
        else:
            kwargs[name] = value
    return Flow(tuple(needs), call.op.target, tuple(args), kwargs)


def positive(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def integers(value: Any, count: int) -> tuple[int, ...]:
    """An argument that is one integer, or one for each of `count` dimensions."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values
