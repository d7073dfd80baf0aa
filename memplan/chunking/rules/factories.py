"""Tensors made from nothing: the size follows the iteration. Never random ones."""

from __future__ import annotations

from typing import Any

from memplan.chunking.rules.arguments import changed, given
from memplan.chunking.rules.flow import Bound, Call, Flow, Rule, Slice, each, whole

SIZED = "full zeros ones empty new_full new_zeros new_ones new_empty"


def sized(call: Call, out: Slice) -> Flow | None:
    """All elements are the same."""
    sizes = call.sizes(out)
    return changed(call, whole(call), {"size": sizes})


def arange(call: Call, out: Slice) -> Flow | None:
    """Integers from `start` in steps: the window's are start + [lo, hi) * step."""
    import torch

    arguments = given(call)
    start = arguments.get("start", 0)
    step = arguments.get("step", 1)
    ends = (start, arguments["end"], step)
    if any(type(value) is not int for value in ends):
        return None
    window = call.window(out)
    low = Bound(window, low=step, high=0, constant=start)
    high = Bound(window, low=0, high=step, constant=start)
    target = torch.ops.aten.arange.start_step
    return Flow((), target, (low, high, step), dict(_options(arguments)))


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    names = ("dtype", "layout", "device", "pin_memory")
    return {n: arguments[n] for n in names if arguments.get(n) is not None}


RULES: dict[str, Rule] = {
    **each(SIZED, sized),
    "aten.arange": arange,
}
