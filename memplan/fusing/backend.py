"""The second way in: ``torch.compile(model, backend="memplan")``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from memplan.fusing.fuse import fuse

# How torch.compile names what it lifts out of a model and hands in as arguments.
_LIFTED = re.compile(r"_(parameters|buffers)_")


def backend(graph_module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """What torch.compile runs in a graph's place: the graph, fused.

    graph_module: a torch.fx.GraphModule; example_inputs: what it is called with.
    Parameters and buffers among the arguments become its own, and are compared by
    identity at every call: where they are others, the graph runs as it is. So it does
    while gradients may be asked for: inference is run under torch.no_grad().
    """
    module = torch.fx.GraphModule(graph_module, graph_module.graph.__class__())
    values: dict[Any, Any] = {}
    module.graph.graph_copy(graph_module.graph, values)
    output = next(node for node in graph_module.graph.nodes if node.op == "output")
    module.graph.output(
        torch.fx.node.map_arg(output.args[0], lambda node: values[node])
    )
    lifted: list[tuple[int, Any]] = []
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, (node, value) in enumerate(
        zip(placeholders, example_inputs, strict=True)
    ):
        own = isinstance(value, torch.nn.Parameter) or (
            isinstance(value, torch.Tensor) and _LIFTED.search(str(node.target))
        )
        if own:
            lifted.append((index, value))
            _keep(module, node, value)
    module.recompile()
    fused = fuse(module.eval())
    taken = {index for index, _ in lifted}

    wanted = [value for _, value in lifted if value.requires_grad]

    def run(*arguments: Any) -> Any:
        if any(arguments[index] is not value for index, value in lifted):
            return graph_module(*arguments)
        if wanted and torch.is_grad_enabled():  # what was compiled can be trained
            return graph_module(*arguments)
        rest = [each for index, each in enumerate(arguments) if index not in taken]
        return fused(*rest)

    return run


def _keep(module: torch.nn.Module, node: Any, value: Any) -> None:
    """Make an argument of a graph a tensor of the module."""
    name = f"kept_{node.name}"
    if isinstance(value, torch.nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)
    with module.graph.inserting_before(node):
        own = module.graph.get_attr(name)
    node.replace_all_uses_with(own)
    module.graph.erase_node(node)
