"""An operator's arguments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

from memplan.graph.program import Argument, Op


@cache
def parameters(target: Callable[..., object]) -> tuple[tuple[str, Argument], ...]:
    """Names and defaults of a target's parameters, in order; None for no default."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return tuple((each.name, each.default_value) for each in schema.arguments)
    return tuple(
        (name, None if each.default is each.empty else each.default)
        for name, each in inspect.signature(target).parameters.items()
    )


def arguments_of(op: Op) -> dict[str, Argument]:
    """All arguments by name, those left out at their defaults."""
    names = parameters(op.target)
    passed = {name: value for (name, _), value in zip(names, op.args, strict=False)}
    return {**dict(names), **passed, **op.kwargs}
