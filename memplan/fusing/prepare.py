"""A model made ready for inputs of given shapes: traced, joined, built, checked."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from memplan.errors import MemplanError
from memplan.fusing.engine.build import Engine, build
from memplan.fusing.front.interpret import interpret
from memplan.fusing.front.recognise import recognise
from memplan.fusing.front.trace import NotTraceableError, trace
from memplan.fusing.front.weights import Watch
from memplan.fusing.join import join
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Called, Node, tensors
from memplan.fusing.options import FuseOptions
from memplan.graph.compare import relative_error

_BUILDING = threading.RLock()


@dataclass(frozen=True)
class LeftAlone:
    """Why a model runs as it was, and its layers, as far as they are known."""

    reason: str
    network: Network | None


@dataclass(frozen=True)
class Prepared:
    """A network that runs fused, on inputs of the shapes it was made for.

    nodes: what runs. watch: what the model was when its weights were packed. error: the
    largest relative difference to the model's own results. seconds: of making it.
    """

    network: Network
    nodes: list[Node]
    engine: Engine
    watch: list[Watch]
    error: float
    seconds: float

    def stale(self) -> bool:
        """Whether the model is another one by now. Weights that changed in it are
        packed anew."""
        watch = self.watch[0]
        if not watch.same_modules():
            return True
        if not watch.same_weights():
            with _BUILDING:
                self.watch[0] = watch.again()
                self.engine.pack()
        return False

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives on these inputs."""
        return self.engine.run(inputs)


def prepare(
    model: Any, inputs: dict[str, Any], fixed: dict[str, Any], options: FuseOptions
) -> Prepared | LeftAlone:
    """Make `model` ready for inputs of these shapes, or say why it stays as it is.

    inputs: the tensors of a call, by argument; fixed: its other arguments.
    """
    import torch

    began = time.perf_counter()
    with _BUILDING, torch.no_grad():
        network = None
        try:
            program = trace(model, fixed)
            expected = model(**inputs, **fixed)
            found = interpret(program, model, inputs)
            if relative_error(expected, found) > options.tolerance:
                return LeftAlone("its trace computes something else", None)
            network = recognise(program)
            nodes, outputs = join(network, options.joining)
            if all(isinstance(node, Called) for node in nodes):
                return LeftAlone("it has no layers that are fused", network)
            engine = build(model, network, nodes, outputs, inputs, options)
            error = relative_error(expected, engine.run(inputs))
        except NotTraceableError as problem:
            return LeftAlone(str(problem), None)
        except MemplanError as problem:
            return LeftAlone(str(problem), network)
        if error > options.tolerance:
            return LeftAlone(f"its results would differ by {error:.1e}", network)
        names = list(dict.fromkeys(tensors(nodes)))
        watch = Watch(model, names)
        seconds = time.perf_counter() - began
    return Prepared(network, nodes, engine, [watch], error, seconds)
