"""What the paper's Table 2 counts: layers, stacks, and the time spent on these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What a layer that fusing can take calls in torch: element-wise operations,
# normalisation, pooling, and dropout, which does nothing.
_OPTIMISABLE = (
    "relu", "batch_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "dropout",
)  # fmt: skip
_OPERATORS = frozenset(
    f"aten::{name}" for name in (*_OPTIMISABLE, "relu_", "clamp_min_")
)

_NODES_OF_LINEAR = 3  # the paper's count: weights, transposed, and two operations


def counted(model: Any) -> dict[str, int]:
    """`layers`, those that are `optimisable`, and `stacks` of these, as the paper has
    them: calls that a network makes, three for one that is linear.

    A stack is a run of optimisable layers, each the only one to take what the one
    before it gives. Networks that have got an adaptive pooling before their classifier
    since then (AlexNet, VGG) have one layer more than in the paper. It has fewer stacks
    of residual networks, where it takes what follows a sum to what precedes it.
    """
    from torch import fx, nn

    traced = fx.symbolic_trace(model)
    layers = 0
    taken: set[Any] = set()
    for node in traced.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        module = None
        if node.op == "call_module":
            module = traced.get_submodule(node.target)
        layers += _NODES_OF_LINEAR if isinstance(module, nn.Linear) else 1
        if _is_optimisable(node, module):
            taken.add(node)
    continued = {
        node for node in taken if node.args[0] in taken and len(node.args[0].users) == 1
    }
    return {
        "layers": layers,
        "optimisable": len(taken),
        "stacks": len(taken) - len(continued),
    }


def _is_optimisable(node: Any, module: Any) -> bool:
    from torch import nn

    if module is None:
        return getattr(node.target, "__name__", node.target) in _OPTIMISABLE
    kinds = (
        nn.ReLU,
        nn.BatchNorm2d,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.Dropout,
    )
    return isinstance(module, kinds)


def share_of_time(run: Callable[[], Any], repeats: int = 3) -> float:
    """The part, from 0 to 1, of a run's operators' time that optimisable ones take."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        run()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(repeats):
                run()
    taken = total = 0.0
    for event in profiler.events():
        if event.cpu_parent is not None or not event.name.startswith("aten::"):
            continue
        total += event.cpu_time_total
        if event.name in _OPERATORS:
            taken += event.cpu_time_total
    return taken / total if total else 0.0
