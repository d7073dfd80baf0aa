"""Nodes of an ONNX graph that multiply and add, as layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memplan.blocking.run.convolutions import Axis, Convolution
from memplan.blocking.run.products import (
    Reading,
    attention,
    matrix_product,
    product,
    recurrent,
)

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
    return _one(product(rows, inner, columns))


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
    return _one(matrix_product(ours, theirs))


def _few_bits(node: Node) -> Reading:
    rows = math.prod(node.shape(0)[:-1])
    return _one(product(rows, node.number("K", 0), node.number("N", 0)))


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
    return _one(product(rows, extent(both - kept), columns, extent(both & kept)))


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


def _one(layer: Any) -> Reading:
    return Reading(((layer, 1),))


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
