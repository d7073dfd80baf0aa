"""The layers of an ONNX file, by the shapes that it states or that follow from them.

No weights are read. Of the nodes only those are run that compute shapes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memplan.blocking.run.inventory import Inventory, ModelLayers
from memplan.blocking.run.onnx_nodes import Node, UnknownShapeError, may_multiply, read
from memplan.blocking.run.onnx_shapes import settled, shapes_of
from memplan.errors import EnvironmentUnfitError, InputError, UsageError

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
