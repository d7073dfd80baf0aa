"""What became of each layer of a model that was captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from memplan.compiling.kernels import Joined
from memplan.fusing.given import CONVOLUTIONS, groups_of
from memplan.fusing.layers import (
    Concat,
    DepthwiseStack,
    EagerOp,
    FusedConv,
    Layer,
    Network,
    Node,
    StackNode,
)
from memplan.fusing.origins import Origins
from memplan.fusing.planes import with_planes
from memplan.fusing.recognise import recognise
from memplan.fusing.rewrites import with_rewrites
from memplan.fusing.rules import LEFT_OUT, UNSUPPORTED
from memplan.graph.capture import Target
from memplan.graph.infer import Inference
from memplan.graph.program import Op

# What says most of a layer, of what became of the operators that it was made.
_RANKS = ("convolution", "stack", "placed", "joined", "torch", "nothing")


@dataclass(frozen=True)
class Seen:
    """A model's layers, with what became of each.

    network: the layers in the forms that stacks are found in. origins: of those, the
    model's own.
    """

    layers: list[Layer]
    network: Network
    origins: Origins = field(default_factory=Origins)


def seen(target: Target, joined: Joined | None = None) -> Seen:
    """What became of a model. joined: its layers as the nodes that compute them; None
    if torch runs all."""
    program, inference, origins = target.program, target.inference, Origins()
    if not all(isinstance(step, Op) for step in program.ops):  # loops are unrolled
        if joined is None:
            return Seen([], Network([], {}, [], program.outputs))
        layers = outcomes(joined, {})
        return Seen(layers, replace(joined.network, layers=layers))
    own = recognise(program, target.module)
    viewed = with_planes(program, inference, origins)
    network = own if viewed is program else recognise(viewed, target.module)
    if joined is not None:
        named = {layer.name: layer for layer in own.layers}
        return Seen(outcomes(joined, named), network, origins)
    return Seen(_by_torch(own, target, inference), network, origins)


def by_torch(layer: Layer) -> Layer:
    """A layer as torch runs it: views, and one of several results, compute nothing."""
    computes = layer.kind != "call" or layer.reason
    return replace(layer, became="torch" if computes else "nothing")


def _by_torch(own: Network, target: Target, inference: Inference) -> list[Layer]:
    """A model's layers as torch runs them; there is no reason for those that kernels
    could run, maybe in another form."""
    origins = Origins()
    program = with_rewrites(target.program, inference, origins)
    program = with_planes(program, inference, origins)
    forms = own if program is target.program else recognise(program, target.module)
    could = {
        origins.of(layer.name)
        for layer in forms.layers
        if layer.kind not in ("call", "pad") or origins.of(layer.name) != layer.name
    }
    could.update(origins.merged)
    made = map(by_torch, own.layers)
    return [replace(x, reason="") if x.name in could else x for x in made]


def outcomes(joined: Joined, named: Mapping[str, Layer]) -> list[Layer]:
    """The layers of a network, with what became of each.

    named: layers by the model's names, where these are known; one of those stands for
    all that it was made.
    """
    known = {name: each for node in joined.nodes for name, each in _of(node, joined)}
    origins, found = joined.origins, dict[str, Layer]()

    def own(name: str) -> str:
        return origin if (origin := origins.of(name)) in named else name

    for layer in joined.network.layers:
        name, nothing = own(layer.name), ("nothing", "", "", "")
        became, into, kernel, why = known.get(layer.name, nothing)
        if became == "torch":
            why = why or layer.reason
            became = became if why else "nothing"  # a view, or one of several results
        given = named.get(name, layer)
        if became == "torch" and layer.kind in ("call", "pad"):
            why = given.reason or why
        into = own(into) if became == "joined" else into
        one = replace(given, became=became, into=into, kernel=kernel, reason=why)
        found[name] = _main(found[name], one) if name in found else one
    for name, into in origins.merged.items():
        if name in named and into in found:
            found[name] = replace(named[name], became="joined", into=into, reason="")
    for name, layer in named.items():
        if layer.operation is not None:  # of what does not change, it is not among them
            found.setdefault(name, replace(layer, became="nothing"))
    return _in_order(found, {name: at for at, name in enumerate(named)})


def _of(node: Node, joined: Joined) -> list[tuple[str, tuple[str, str, str, str]]]:
    """Of each layer of a node, what it became, into what, by which kernel, and why."""
    main = node.convolution if isinstance(node, DepthwiseStack) else node
    head = main.layers[0] if main.layers else ""
    found = []
    for name in node.names():
        if isinstance(node, EagerOp):
            one = "torch", "", "", ""
        elif isinstance(main, FusedConv) and name == head:
            one = "convolution", "", joined.kernels[main.value], ""
        elif node.value not in joined.native and not isinstance(node, Concat):
            one = "torch", "", "", _why_not(node, joined)
        elif isinstance(main, FusedConv):
            one = "joined", head, "", ""
        elif isinstance(node, StackNode):
            one = "stack", node.value, "", ""
        else:
            one = "placed", "", "", ""
        found.append((name, one))
    return found


def _main(one: Layer, other: Layer) -> Layer:
    """What became of a layer that was made two."""
    first, second = sorted((one, other), key=lambda each: _RANKS.index(each.became))
    if second.became != "convolution":
        return first
    kernels = {*first.kernel.split(" and "), *second.kernel.split(" and ")}
    return replace(first, kernel=" and ".join(sorted(kernels)))


def _in_order(found: dict[str, Layer], order: Mapping[str, int]) -> list[Layer]:
    """The model's layers in its order, others behind what they were behind."""
    ranks: list[tuple[int, int, Layer]] = []
    last = -1
    for name, layer in found.items():
        last = order.get(name, last)
        ranks.append((last, len(ranks), layer))
    return [layer for *_, layer in sorted(ranks, key=lambda each: each[:2])]


def why_unfused(layers: Iterable[Layer]) -> str:
    """Where the first layer is that a kernel would run but for one thing, and what
    that is: of convolutions, or else of others; "" if there is none."""
    found: list[tuple[bool, str]] = []
    for layer in layers:
        why, convolves = layer.reason, layer.op.key in CONVOLUTIONS
        if convolves and not why:
            why = "it has groups" if groups_of(layer.op) > 1 else LEFT_OUT
        if layer.became == "torch" and why and not why.endswith(UNSUPPORTED):
            found.append((not convolves, f"{layer.place}: {why}"))
    return min(found, key=itemgetter(0), default=(True, ""))[1]


def _why_not(node: Node, joined: Joined) -> str:
    """Why torch runs a layer that can be joined with others."""
    if isinstance(node, FusedConv):
        return "its convolution runs by oneDNN"
    if joined.packs.native(node):
        return "a kernel would need a copy of what it reads"
    return "no kernel was compiled"
