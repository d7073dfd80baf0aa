"""Shapes of an ONNX graph's values, where nodes compute the shapes of others.

Inference alone stops at a reshape whose sizes are computed from those of another value.
Small values that follow from known shapes are computed here, node by node, until no
more follow. Weights are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

_SMALL = 1024  # elements of a value that may be sizes
_PASSES = 64  # each settles what only the one before made known
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")
_PRODUCTS = {"Einsum", "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"}


def settled(model: Any) -> Any:
    """The model with every shape that follows from its inputs' and from small values.

    Changes the model: weights become inputs, and nodes that were computed small values.
    Raises what onnx raises where shapes cannot be inferred.
    """
    import onnx

    _forget_weights(model.graph)
    hopeless: set[str] = set()
    for _ in range(_PASSES):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        if not _fold(model, dict(shapes_of(inferred.graph)), hopeless):
            break
    return inferred


def shapes_of(graph: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of values whose sizes are all known."""
    for one in (*graph.value_info, *graph.output, *graph.input):
        if not one.type.tensor_type.HasField("shape"):
            continue
        dims = one.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            yield one.name, tuple(dim.dim_value for dim in dims)
    for one in graph.initializer:
        yield one.name, tuple(one.dims)


def _forget_weights(graph: Any) -> None:
    """Large initializers, and those in other files, become inputs of their shapes."""
    from onnx import TensorProto, helper

    kept, inputs = [], {one.name for one in graph.input}
    for one in graph.initializer:
        elsewhere = one.data_location == TensorProto.EXTERNAL
        if math.prod(one.dims) <= _SMALL and not elsewhere:
            kept.append(one)
        elif one.name not in inputs:
            value = helper.make_tensor_value_info(one.name, one.data_type, one.dims)
            graph.input.append(value)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _fold(model: Any, shapes: dict[str, tuple[int, ...]], hopeless: set[str]) -> bool:
    """Turn nodes whose values follow into initializers; whether there were any."""
    from onnx import numpy_helper

    graph = model.graph
    known = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    rest = []
    for node in graph.node:
        made = None
        if not hopeless.intersection(node.output):
            made = _value(model, node, known, shapes, hopeless)
        if made is None:
            rest.append(node)
            continue
        known |= made
        graph.initializer.extend(
            numpy_helper.from_array(value, name) for name, value in made.items()
        )
    folded = len(rest) < len(graph.node)
    del graph.node[:]
    graph.node.extend(rest)
    return folded


def _value(
    model: Any,
    node: Any,
    known: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    hopeless: set[str],
) -> dict[str, Any] | None:
    """What the node makes, if that follows and is small."""
    import numpy as np

    if node.op_type == "Shape" and node.input[0] in shapes:
        limits = {one.name: one.i for one in node.attribute}
        sizes = shapes[node.input[0]]
        cut = sizes[limits.get("start", 0) : limits.get("end", len(sizes))]
        return {node.output[0]: np.array(cut, np.int64)}
    names = [name for name in node.input if name]
    if not all(name in known for name in names) or not _may_be_run(node):
        return None
    results = [name for name in node.output if name]
    if not all(
        math.prod(shapes.get(name, (_SMALL + 1,))) <= _SMALL for name in results
    ):
        return None
    try:
        return _run(model, node, {name: known[name] for name in names})
    except Exception:  # the reference has gaps, each with an error of its own
        hopeless.update(results)
        return None


def _may_be_run(node: Any) -> bool:
    own = node.domain in ("", "ai.onnx")
    heavy = node.op_type in _PRODUCTS or node.op_type.startswith(_RANDOM)
    graphs = any(one.HasField("g") or one.graphs for one in node.attribute)
    return own and not heavy and not graphs and bool(node.output)


def _run(model: Any, node: Any, given: dict[str, Any]) -> dict[str, Any]:
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)

    results = [name for name in node.output if name]
    graph = helper.make_graph(
        [node], "node", list(map(value, given)), list(map(value, results))
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    made = ReferenceEvaluator(alone).run(None, given)
    return dict(zip(results, made, strict=True))
