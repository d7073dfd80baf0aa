"""The second way in: ``torch.compile(model, backend="memplan")``."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from memplan.compiling.bench import CompileOptions
from memplan.compiling.compile import compile as compiled
from memplan.compiling.fuse import fuse
from memplan.errors import MemplanError
from memplan.graph.standin import frames_to_caller

# How torch.compile names what it lifts out of a model and hands in as arguments.
_LIFTED = re.compile(r"_(parameters|buffers)_")


class Closed(torch.nn.Module):  # type: ignore[misc]
    """A graph whose `lifted` arguments, by position, are tensors of the module."""

    def __init__(self, graph: torch.nn.Module, lifted: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.graph, self.names = graph, {at: f"lifted_{at}" for at in lifted}
        for at, value in lifted.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(self.names[at], value)
            else:
                self.register_buffer(self.names[at], value)

    def forward(self, *rest: Any) -> Any:
        given = list(rest)
        for at in sorted(self.names):
            given.insert(at, getattr(self, self.names[at]))
        return self.graph(*given)


def backend(graph_module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """What torch.compile runs in a graph's place: the graph in one arena, by memplan's
    kernels where it has any; on a GPU, fused.

    graph_module: a torch.fx.GraphModule; example_inputs: what it is called with. It is
    compiled at its first call. Parameters and buffers among the arguments become its
    own, and are compared by identity at every call: where they are others, the graph
    runs as it is. So it does while gradients may be asked for: inference is run under
    torch.no_grad().
    """
    places = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    lifted = {
        at: value
        for at, (node, value) in enumerate(zip(places, example_inputs, strict=True))
        if isinstance(value, torch.nn.Parameter)
        or (isinstance(value, torch.Tensor) and _LIFTED.search(str(node.target)))
    }
    _ = graph_module.code  # torch writes it when first asked: then it does not change
    ready = _Lazy(Closed(graph_module, lifted).eval())
    trainable = any(value.requires_grad for value in lifted.values())

    def run(*arguments: Any) -> Any:
        if any(arguments[at] is not value for at, value in lifted.items()):
            return graph_module(*arguments)
        if trainable and torch.is_grad_enabled():  # what was compiled can be trained
            return graph_module(*arguments)
        return ready(*(x for at, x in enumerate(arguments) if at not in lifted))

    return run


class _Lazy:
    """A module that is compiled at its first call."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module, self._lock = module, threading.Lock()
        self._made: torch.nn.Module | None = None

    def __call__(self, *given: Any) -> Any:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._compiled(given)
        return self._made(*given)

    def _compiled(self, given: tuple[Any, ...]) -> torch.nn.Module:
        tensors = (x for x in given if isinstance(x, torch.Tensor))
        if any(x.device.type != "cpu" for x in (*tensors, *self._module.parameters())):
            return fuse(self._module)
        try:
            made = compiled(self._module, given, options=CompileOptions(pack=True))
            reason = "" if made.runner else made.memplan.reason
        except MemplanError as problem:
            made, reason = self._module, str(problem)
        if reason:
            message = f"memplan.compile: the graph runs unchanged: {reason}"
            warnings.warn(message, stacklevel=frames_to_caller())
        return made
