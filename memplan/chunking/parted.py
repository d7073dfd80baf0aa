"""Products whose results are taken apart at once, as one product for each part.

A model that projects to queries, keys and values together keeps all three in memory
until the last is used, and no slice of heads is a window of the whole. As products of
their own they are the same numbers, each with memory of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref, refs

SPLITS = {"aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unsafe_chunk"}
FEWEST = 64  # features of a part: products of fewer columns are slow

# Of each product, where its weight stands, the weight's dimension of features, and
# where its bias stands.
PRODUCTS = {
    "aten.linear": (1, 0, 2),
    "aten.addmm": (2, 1, 0),
    "aten.mm": (1, 1, None),
    "aten.matmul": (1, 1, None),
}


def parted(program: Program, inference: Inference) -> Program:
    """The program with each product that is only split along its features, by plain
    parameters, as one for each part."""
    users: dict[str, list[Op]] = {}
    makers: dict[str, Op] = {}
    for op in program.ops:
        if isinstance(op, Op):
            makers[op.name] = op
            for name in dict.fromkeys(op.operands()):
                users.setdefault(name, []).append(op)
    given = set(refs(program.outputs))
    parts: dict[str, list[Op]] = {}  # by the product in whose place they stand
    gone: set[str] = set()
    for op in program.ops:
        chain = _chain(program, op, makers, users, given) if isinstance(op, Op) else []
        if chain:
            parts[chain[-1].name] = list(_parts(program, chain, users[chain[0].name]))
            gone.update(each.name for each in (*chain, *users[chain[0].name]))
    if not parts:
        return program
    new = replace(program, ops=[], metas=dict(program.metas), roots=dict(program.roots))
    for step in program.ops:
        if isinstance(step, Op) and step.name in gone:
            for each in parts.get(step.name, []):
                inference.add(new, each)
                new.ops.append(each)
            continue
        if isinstance(step, Op):
            inference.add(new, step)
        new.ops.append(step)
    return without_dead(new)


def _chain(
    program: Program,
    split: Op,
    makers: dict[str, Op],
    users: dict[str, list[Op]],
    given: set[str],
) -> list[Op]:
    """The split, the reshapes before it, and the product that they come from; empty
    if there is none, or if anything else takes its result."""
    if not _splits_features(program, split, users.get(split.name, [])):
        return []
    chain = [split]
    source = split.args[0]
    features = program.metas[source.name].shape[-1]
    while source.name not in given and len(users[source.name]) == 1:
        op = makers.get(source.name)
        if op is None or program.metas[op.name].shape[-1] != features:
            break
        chain.append(op)
        if op.key in PRODUCTS and _plain(program, op):
            return chain
        if op.key != "aten.reshape":
            break
        source = op.args[0]
    return []


def _splits_features(program: Program, split: Op, takers: list[Op]) -> bool:
    """Whether an operator takes the last dimension apart, into wide enough parts."""
    if split.key not in SPLITS or not takers:
        return False
    last = len(program.metas[split.args[0].name].shape) - 1
    return (
        _dimension(split) in (-1, last)
        and all(each.target is operator.getitem for each in takers)
        and min(meta.shape[-1] for meta in program.metas[split.name]) >= FEWEST
    )


def _dimension(split: Op) -> int:
    value = split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)
    return int(value)


def _plain(program: Program, op: Op) -> bool:
    """Whether weight and bias are parameters, one number of each for each feature."""
    at, dim, bias = PRODUCTS[op.key]
    weight = op.args[at]
    if op.kwargs or weight.name not in program.constants:
        return False
    if bias is None or len(op.args) <= bias or op.args[bias] is None:
        return len(program.metas[weight.name].shape) == 2
    if op.args[bias].name not in program.constants:
        return False
    sizes = program.metas[op.args[bias].name].shape
    return tuple(sizes) == (program.metas[weight.name].shape[dim],)


def _parts(program: Program, chain: list[Op], takers: list[Op]) -> Iterator[Op]:
    """The products of the parts that are taken, and the reshapes of each; the last has
    the name of the part."""
    import torch

    split, product = chain[0], chain[-1]
    sizes = [meta.shape[-1] for meta in program.metas[split.name]]
    starts = [0, *accumulate(sizes)]
    done: dict[int, str] = {}
    for taker in takers:
        index = taker.args[1] % len(sizes)
        if index in done:  # taken once more
            shape = list(program.metas[taker.name].shape)
            again = (Ref(done[index]), shape)
            yield Op(taker.name, torch.ops.aten.reshape.default, again, {}, taker.line)
            continue
        done[index] = taker.name
        ends = starts[index], starts[index + 1]
        names = [f"{taker.name}_{each.name}" for each in chain[:1:-1]]
        names = [*names, taker.name]
        yield from _product(product, names[0], ends)
        for op, name, source in zip(chain[-2:0:-1], names[1:], names[:-1], strict=True):
            shape = [*program.metas[op.name].shape[:-1], sizes[index]]
            yield Op(name, op.target, (Ref(source), shape), {}, op.line)


def _product(product: Op, name: str, ends: tuple[int, int]) -> Iterator[Op]:
    """The product of the features from one end to the other."""
    import torch

    at, dim, bias = PRODUCTS[product.key]
    args: list[Any] = list(product.args)
    for place, along in ((at, dim), (bias, 0)):
        if place is None or place >= len(args) or args[place] is None:
            continue
        part = f"{name}_{'weight' if place == at else 'bias'}"
        cut = (args[place], along, *ends)
        yield Op(part, torch.ops.aten.slice.Tensor, cut, {}, product.line)
        args[place] = Ref(part)
    yield Op(name, product.target, tuple(args), {}, product.line)
