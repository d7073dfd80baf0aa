"""The layers of an ONNX file, by the shapes that it states or that follow from them.

No weights are read. Of the nodes only those are run that compute shapes: inference
alone stops at a reshape whose sizes are computed from those of another value, so small
values that follow from known shapes are computed, node by node, until no more follow.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from memplan.blocking.run.inventory import (
    Axis,
    Convolution,
    Inventory,
    ModelLayers,
    Reading,
    attention,
    matrix_product,
    once,
    product,
    recurrent,
)
from memplan.errors import EnvironmentUnfitError, InputError, UsageError

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


_OWN = ("", "ai.onnx")  # domains of ONNX itself
_NO_PRODUCTS = ("ai.onnx.ml", "ai.onnx.preview.training")
# Nodes of ONNX itself that multiply and that no layer stands for.
_OTHERS = {"DeformConv", "DFT", "STFT", "Det", "MelWeightMatrix"}


class UnknownShapeError(Exception):
    """Which of a node's values has no shape."""


class Node:
    """One node; attributes by their names, shapes by place."""

    def __init__(self, proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        from onnx import AttributeProto, helper

        self._proto, self._shapes = proto, shapes
        inner = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        self.attributes = {
            one.name: helper.get_attribute_value(one)
            for one in proto.attribute
            if one.type not in inner and not one.ref_attr_name
        }
        self.graphs = [one.g for one in proto.attribute if one.type == inner[0]]
        self.graphs += [g for one in proto.attribute for g in one.graphs]
        self.domain = str(proto.domain)
        self.operation = str(proto.op_type)

    @property
    def kind(self) -> str:
        """Its operation, with the domain if that is not ONNX's own."""
        own = self.domain in _OWN
        return self.operation if own else f"{self.domain}.{self.operation}"

    @property
    def name(self) -> str:
        """Its own, or what it makes."""
        return str(self._proto.name or next(iter(self._proto.output), self.operation))

    def number(self, attribute: str, otherwise: int) -> int:
        """An attribute that is one number."""
        return int(self.attributes.get(attribute, otherwise))

    def numbers(self, attribute: str, rank: int) -> list[int]:
        """One that is a number for each dimension, 1 if it is absent."""
        return [int(n) for n in self.attributes.get(attribute, [1] * rank)]

    def text(self, attribute: str, otherwise: str) -> str:
        """One that is a string."""
        value = self.attributes.get(attribute, otherwise)
        return value.decode() if isinstance(value, bytes) else str(value)

    def shape(self, place: int) -> tuple[int, ...]:
        """Of one of its inputs. Raises UnknownShapeError."""
        return self._shape(self._proto.input, place, "input")

    def made(self, place: int = 0) -> tuple[int, ...]:
        """Of one of its outputs. Raises UnknownShapeError."""
        return self._shape(self._proto.output, place, "output")

    def _shape(self, names: Any, place: int, what: str) -> tuple[int, ...]:
        name = names[place]
        if name not in self._shapes:
            raise UnknownShapeError(f"{what} {name!r} has no known shape")
        return self._shapes[name]


def read(node: Node) -> Reading | None:
    """What the node comes to; None if it is not known.

    Raises InputError where one of its sizes is 0, or too large; UnknownShapeError; and
    ValueError, IndexError, KeyError, TypeError or ZeroDivisionError where the node is
    malformed.
    """
    domain = "" if node.domain in _OWN else node.domain
    reader = _READERS.get((domain, node.operation))
    return None if reader is None else reader(node)


def may_multiply(node: Node) -> bool:
    """Whether a node may multiply matrices: what `read` knows, others' own nodes, and
    some of ONNX that are no layers."""
    if node.domain in _OWN:
        return ("", node.operation) in _READERS or node.operation in _OTHERS
    return node.domain not in _NO_PRODUCTS


def _convolution(node: Node, weights: int = 1) -> Reading:
    image, weight, made = node.shape(0), node.shape(weights), node.made()
    rank, groups = len(weight) - 2, node.number("group", 1)
    transposed = node.operation == "ConvTranspose"
    steps, gaps = node.numbers("strides", rank), node.numbers("dilations", rank)
    axes = tuple(map(Axis, made[2:], weight[2:], steps, gaps, image[2:]))
    channels, kernels = weight[1], weight[0] // groups
    if transposed:
        channels, kernels = weight[0] // groups, weight[1]
    found = Convolution(image[0], channels, kernels, groups, axes, transposed)
    return found.read()


def _pooling(node: Node) -> Reading:
    image, made = node.shape(0), node.made()
    rank = len(made) - 2
    sizes = [node.numbers(a, rank) for a in ("kernel_shape", "strides", "dilations")]
    axes = tuple(map(Axis, made[2:], *sizes))
    return Convolution(image[0], 1, 1, image[1], axes).read().without_weights


def _gemm(node: Node) -> Reading:
    left, right = node.shape(0), node.shape(1)
    rows, inner = left[::-1] if node.number("transA", 0) else left
    columns = right[0 if node.number("transB", 0) else 1]
    return once(product(rows, inner, columns))


def _matmul(node: Node, right: int = 1) -> Reading:
    ours, theirs = list(node.shape(0)), list(node.shape(right))
    if len(ours) == 1:
        ours = [1, *ours]
    if len(theirs) == 1:
        theirs = [*theirs, 1]
    if node.number("transA", 0):
        ours[-2:] = ours[:-3:-1]
    if node.number("transB", 0):
        theirs[-2:] = theirs[:-3:-1]
    if ours[-1] != theirs[-2]:
        raise ValueError(f"{tuple(ours)} by {tuple(theirs)}")
    return once(matrix_product(ours, theirs))


def _few_bits(node: Node) -> Reading:
    rows = math.prod(node.shape(0)[:-1])
    return once(product(rows, node.number("K", 0), node.number("N", 0)))


def _einsum(node: Node) -> Reading | None:
    equation = node.text("equation", "").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    names = terms.split(",")
    if len(names) == 1:
        return Reading(())
    if len(names) != 2 or not arrow or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for place, term in enumerate(names):
        sizes |= dict(zip(term, node.shape(place), strict=True))
    left, right, kept = (set(term) for term in (*names, result))

    def extent(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    both = left & right
    rows, columns = extent((left - right) & kept), extent((right - left) & kept)
    return once(product(rows, extent(both - kept), columns, extent(both & kept)))


def _recurrent(node: Node, gates: int) -> Reading:
    sequence, weight = node.shape(0), node.shape(1)
    steps, batch = sequence[1::-1] if node.number("layout", 0) else sequence[:2]
    hidden = weight[1] // gates
    one = recurrent(gates, steps, batch, weight[2], hidden)
    return Reading(tuple((layer, count * weight[0]) for layer, count in one.parts))


def _attention(node: Node) -> Reading:
    query, key, value = (node.shape(place) for place in range(3))
    if len(query) == 3:
        heads, fewer = node.number("q_num_heads", 1), node.number("kv_num_heads", 1)
        query = (query[0], heads, query[1], query[2] // heads)
        key, value = ((own[0], fewer, own[1], own[2] // fewer) for own in (key, value))
    return attention(query, key, value)


_READERS: dict[tuple[str, str], Callable[[Node], Reading | None]] = {
    ("", "Conv"): _convolution,
    ("", "ConvInteger"): _convolution,
    ("", "ConvTranspose"): _convolution,
    ("", "QLinearConv"): partial(_convolution, weights=3),
    ("com.microsoft", "FusedConv"): _convolution,
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "MatMulInteger"): _matmul,
    ("", "QLinearMatMul"): partial(_matmul, right=3),
    ("com.microsoft", "FusedMatMul"): _matmul,
    ("com.microsoft", "MatMulNBits"): _few_bits,
    ("", "Einsum"): _einsum,
    ("", "LSTM"): partial(_recurrent, gates=4),
    ("", "GRU"): partial(_recurrent, gates=3),
    ("", "RNN"): partial(_recurrent, gates=1),
    ("", "Attention"): _attention,
    ("", "MaxPool"): _pooling,
    ("", "AveragePool"): _pooling,
    ("", "LpPool"): _pooling,
}


SUFFIX = ".onnx"
_USUAL = 1  # of a dimension that is left open


def layers_of_onnx(spec: str) -> ModelLayers:
    """The layers of ``FILE.onnx``, or ``FILE.onnx:batch=8,sequence=128``, which says
    how large dimensions are that the file leaves open; others of these are 1.

    Raises UsageError where the sizes make no sense, InputError where the file is none,
    EnvironmentUnfitError without the package onnx.
    """
    file, sizes = parse_onnx_spec(spec)
    if not file.is_file():
        raise InputError(f"{file}: there is no such file")
    if importlib.util.find_spec("onnx") is None:
        raise EnvironmentUnfitError(f"{file} needs onnx: pip install 'memplan[onnx]'")
    model = _loaded(file)
    open_ = _close(model, sizes, file)
    found = Inventory()
    _walk(_inferred(model, file).graph, found)
    return found.all(more=open_)


def parse_onnx_spec(spec: str) -> tuple[Path, dict[str, int]]:
    """The file, and the sizes after it. Raises UsageError for anything else."""
    head, colon, tail = spec.rpartition(f"{SUFFIX}:")
    if not colon:
        return Path(spec), {}
    sizes = {}
    for part in tail.split(","):
        name, equals, number = part.partition("=")
        if not equals or not number.isdecimal() or not 1 <= int(number) < 1 << 31:
            raise UsageError(
                f"{spec!r}: {part!r} is no size of a dimension: write it as batch=8"
            )
        sizes[name.strip()] = int(number)
    return Path(head + SUFFIX), sizes


def _loaded(file: Path) -> Any:
    """The model with its functions written out. Raises InputError if it is none."""
    import onnx
    from onnx.inliner import inline_local_functions

    try:
        model = onnx.load(str(file), load_external_data=False)
        if model.functions:
            model = inline_local_functions(model)
    except Exception as error:  # the parser's own kinds are many
        raise InputError(f"{file}: this is no ONNX model: {_line(error)}") from error
    if not model.graph.node:
        raise InputError(f"{file}: this is no ONNX model: it has no nodes")
    return model


def _close(model: Any, sizes: Mapping[str, int], file: Path) -> tuple[str, ...]:
    """Give every open dimension of the inputs a size; says which ones were.

    Raises UsageError where `sizes` names a dimension that is not open.
    """
    given = {one.name for one in model.graph.initializer}
    taken: dict[str, int] = {}
    for one in model.graph.input:
        if one.name in given or not one.type.HasField("tensor_type"):
            continue
        for at, dim in enumerate(one.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name = dim.dim_param or f"{one.name}[{at}]"
            taken[name] = dim.dim_value = sizes.get(name, _USUAL)
    unknown = sizes.keys() - taken.keys()
    if unknown:
        have = ", ".join(taken) or "none"
        raise UsageError(f"{file} leaves no {min(unknown)!r} open, but {have}")
    # What was inferred for open dimensions holds no more.
    del model.graph.value_info[:]
    for one in model.graph.output:
        one.type.tensor_type.ClearField("shape")
    said = ", ".join(f"{name} = {size}" for name, size in taken.items())
    return (f"dimensions that the file leaves open: {said}",) if said else ()


def _inferred(model: Any, file: Path) -> Any:
    """The model with shapes of what its nodes make, as far as they follow."""
    try:
        return settled(model)
    except Exception as error:  # the kinds that onnx raises are many, here, too
        raise InputError(
            f"{file}: its shapes do not fit together: {_line(error)}"
        ) from error


def _walk(graph: Any, found: Inventory) -> None:
    shapes = dict(shapes_of(graph))
    for proto in graph.node:
        node = Node(proto, shapes)
        reason = _enter(node, found)
        if reason:
            found.leave_out(node.name, reason, None)


def _enter(node: Node, found: Inventory) -> str:
    """Take the node's layers; says why where it multiplies and has none."""
    if any(map(_multiplies, node.graphs)):
        return f"how often {node.kind} runs what is in it is not known"
    try:
        reading = read(node)
    except UnknownShapeError as error:
        return f"{node.kind}, whose {error}"
    except InputError as error:
        return f"{node.kind}{error}"
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
        return f"{node.kind}, which makes no sense: {_line(error)}"
    if reading is not None:
        found.take(node.name, reading)
    elif may_multiply(node):
        return f"{node.kind} is one operation, whose products are not known"
    return ""


def _multiplies(graph: Any) -> bool:
    nodes = [Node(proto, {}) for proto in graph.node]
    return any(
        may_multiply(node) or any(map(_multiplies, node.graphs)) for node in nodes
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
