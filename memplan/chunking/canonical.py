"""The form of a program in which regions are searched.

Masks that are known before the run are removed, repeated keys and values are grouped,
products whose results are split become one product for each part, other parts become
slices, group norm becomes two passes, losses become a sum of one for each target, sums
of permuted rows become additions, and concatenations are filled part by part.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from memplan.chunking.concatenations import with_filled
from memplan.chunking.masks import Masks
from memplan.chunking.parted_losses import losses_apart
from memplan.chunking.permuted import with_additions
from memplan.chunking.rewriting import ends_of, rewritten
from memplan.chunking.rules.lowered import group_norm_apply, group_norm_statistics
from memplan.graph.arguments import arguments_of
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Argument, Op, Program, Ref, Step, refs


def searchable(program: Program, inference: Inference) -> Program:
    """The canonical form of a lowered program."""
    for change in (
        *(with_plain_attention, parted, with_slices),
        *(with_parts_of_groups, with_two_passes, with_losses, with_additions),
    ):
        program = change(program, inference)
    return with_filled(program, inference)


def with_plain_attention(program: Program, inference: Inference) -> Program:
    """The program without known masks, and with keys and values that several heads of
    queries share passed to attention once, not repeated.

    A mask that hides the keys after each query becomes `is_causal`. Only masks that
    depend on neither inputs nor parameters and buffers are known.
    """
    masks = Masks(program)
    makers = {op.name: op for op in program.ops if isinstance(op, Op)}

    def change(op: Op) -> list[Op] | None:
        if op.key != "aten.scaled_dot_product_attention":
            return None
        return [_grouped(program, _unmasked(op, masks), makers)]

    return rewritten(program, inference, change)


def _options(op: Op) -> dict[str, Argument]:
    """Attention's arguments besides query, key and value, by name, without defaults."""
    names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = {**dict(zip(names, op.args[3:], strict=False)), **op.kwargs}
    return {name: value for name, value in given.items() if value}


def _unmasked(op: Op, masks: Masks) -> Op:
    options = _options(op)
    mask = options.pop("attn_mask", None)
    hides = masks.hides(mask.name) if isinstance(mask, Ref) else None
    if hides is None or "is_causal" in options:
        return op
    if hides == "later keys":
        options["is_causal"] = True
    return Op(op.name, op.target, op.args[:3], options, op.line)


THROUGH = {"aten.reshape", "aten._unsafe_view", "aten.clone"}


def _grouped(program: Program, op: Op, makers: dict[str, Op]) -> Op:
    """Attention to the keys and values that are repeated, if they are; with a mask only
    on a CPU, since some kernels of GPUs do not take a mask and groups."""
    options = _options(op)
    on_cpu = program.metas[op.name].device == "cpu"
    if "enable_gqa" in options or ("attn_mask" in options and not on_cpu):
        return op
    key, value = (_source(program, arg.name, makers) for arg in op.args[1:3])
    if key is None or value is None:
        return op
    if program.metas[key].shape[1] != program.metas[value].shape[1]:
        return op
    args = (op.args[0], Ref(key), Ref(value))
    return Op(op.name, op.target, args, {**options, "enable_gqa": True}, op.line)


def _source(program: Program, name: str, makers: dict[str, Op]) -> str | None:
    """The value [B, groups, S, D] whose heads [B, heads, S, D] repeats, or None."""
    result = program.metas[name].shape
    op = makers.get(name)
    while op is not None and op.key in THROUGH:
        op = makers.get(op.args[0].name)
    if op is None or op.key != "aten.expand" or len(result) != 4:
        return None
    wide = program.metas[op.name].shape
    added = makers.get(op.args[0].name)
    if added is None or added.key != "aten.unsqueeze" or len(wide) != 5:
        return None
    source = program.metas[added.args[0].name].shape
    if program.metas[added.name].shape != (*source[:2], 1, *source[2:]):
        return None
    batch, groups, times, *rest = wide
    if (batch, groups, *rest) != tuple(source) or times == 1:
        return None
    if tuple(result) != (batch, groups * times, *rest):
        return None
    return str(added.args[0].name)


SPLITS = {
    "aten.split",
    "aten.split_with_sizes",
    "aten.chunk",
    "aten.tensor_split",
    "aten.unsafe_split",
    "aten.unsafe_split_with_sizes",
    "aten.unsafe_chunk",
}
FEWEST = 64  # features of a part: products of fewer columns are slow
NARROW = 1 / 32  # of all features: parts that take little time even so

# Of each product, where its weight stands, the weight's dimension of features, and
# where its bias stands.
PRODUCTS = {
    "aten.linear": (1, 0, 2),
    "aten.addmm": (2, 1, 0),
    "aten.mm": (1, 1, None),
    "aten.matmul": (1, 1, None),
    "transformers.grouped_mm_fallback": (1, 2, None),  # a matrix for each group
}


def parted(program: Program, inference: Inference) -> Program:
    """The program with one product for each part, if a product's result is only split
    along its features.

    A model that projects to queries, keys and values together keeps all three until the
    last is used, and no slice of heads is a window of the whole. Separate products give
    the same numbers, each with memory of its own.
    """
    makers, users = ends_of(program)
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

    def change(op: Op) -> list[Op]:
        return parts.get(op.name, []) if op.name in gone else [op]

    return rewritten(program, inference, change)


def _chain(
    program: Program,
    split: Op,
    makers: dict[str, Op],
    users: dict[str, list[Op]],
    given: set[str],
) -> list[Op]:
    """The split, the reshapes before it, and their product; empty if there is none, or
    if its result has other users."""
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
        if op.key in PRODUCTS and _plain(program, op, makers):
            return chain
        if op.key != "aten.reshape":
            break
        source = op.args[0]
    return []


def _splits_features(program: Program, split: Op, takers: list[Op]) -> bool:
    """Whether an operator splits the last dimension into parts that are wide enough, or
    together narrow enough not to matter."""
    if split.key not in SPLITS or not takers:
        return False
    last = len(program.metas[split.args[0].name].shape) - 1
    widths = [meta.shape[-1] for meta in program.metas[split.name]]
    narrow = sum(width for width in widths if width < FEWEST)
    return (
        arguments_of(split)["dim"] in (-1, last)
        and all(each.target is operator.getitem for each in takers)
        and narrow <= NARROW * sum(widths)
    )


def _plain(program: Program, op: Op, makers: dict[str, Op]) -> bool:
    """Whether weight and bias are parameters with one row or number per feature; the
    weight may be transposed."""
    at, dim, bias = PRODUCTS[op.key]
    weight = op.args[at]
    own, made = weight.name, makers.get(weight.name)
    if made is not None and made.key == "aten.transpose":
        own = made.args[0].name
    if op.kwargs or own not in program.constants:
        return False
    if bias is None or len(op.args) <= bias or op.args[bias] is None:
        return len(program.metas[weight.name].shape) == max(2, dim + 1)
    if op.args[bias].name not in program.constants:
        return False
    sizes = program.metas[op.args[bias].name].shape
    return tuple(sizes) == (program.metas[weight.name].shape[dim],)


def _parts(program: Program, chain: list[Op], takers: list[Op]) -> Iterator[Op]:
    """The products of the parts that are used, and their reshapes; the last has the
    name of the part."""
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
    """The product for the features in the range `ends`."""
    at, dim, bias = PRODUCTS[product.key]
    args: list[Argument] = list(product.args)
    for place, along in ((at, dim), (bias, 0)):
        if place is None or place >= len(args) or args[place] is None:
            continue
        part = f"{name}_{'weight' if place == at else 'bias'}"
        cut = (args[place], along, *ends)
        yield Op(part, torch.ops.aten.slice.Tensor, cut, {}, product.line)
        args[place] = Ref(part)
    yield Op(name, product.target, tuple(args), {}, product.line)


def with_slices(program: Program, inference: Inference) -> Program:
    """The program with a slice or a selection for each part of a value that is split.

    They are the same views. A loop can hold each with a halo of its own.
    """
    makers = {op.name: op for op in program.ops if isinstance(op, Op)}

    def change(op: Op) -> list[Op] | None:
        split = makers.get(op.args[0].name) if op.target is operator.getitem else None
        if split is None or split.key not in {*SPLITS, "aten.unbind"}:
            return None
        dim, metas = arguments_of(split)["dim"], program.metas[split.name]
        index = op.args[1] % len(metas)
        if split.key == "aten.unbind":
            one = (split.args[0], dim, index)
            return [Op(op.name, torch.ops.aten.select.int, one, {}, op.line)]
        starts = [0, *accumulate(meta.shape[dim] for meta in metas)]
        cut = (split.args[0], dim, starts[index], starts[index + 1])
        return [Op(op.name, torch.ops.aten.slice.Tensor, cut, {}, op.line)]

    return rewritten(program, inference, change)


def with_parts_of_groups(program: Program, inference: Inference) -> Program:
    """The program with one product for each part, if a product's features are only
    reshaped to groups, [..., G, H, D], and each group is selected, as queries, keys and
    values are."""
    makers, users = ends_of(program)
    given = set(refs(program.outputs))

    def only_user(name: str) -> Op | None:
        one = name not in given and len(users.get(name, ())) == 1
        return users[name][0] if one else None

    def source(name: str, key: str) -> Op | None:
        """What makes a value, if it is an operator of this kind."""
        op = makers.get(name)
        return op if op is not None and op.key == key else None

    def change(op: Op) -> list[Op] | None:
        if op.key != "aten.select":
            return None
        last = op.args[0].name
        moved = source(last, "aten.permute")
        grouped = source(moved.args[0].name if moved else last, "aten.reshape")
        product = makers.get(grouped.args[0].name) if grouped else None
        if grouped is None or product is None or product.key not in PRODUCTS:
            return None
        chain = [product, grouped, *([moved] if moved else [])]
        alone = [only_user(each.name) for each in chain[:-1]] == chain[1:]
        selected = last not in given and all(
            each.key == "aten.select" for each in users[last]
        )
        if not (alone and selected and _plain(program, product, makers)):
            return None
        return _group(program, op, moved, grouped, product)

    return rewritten(program, inference, change)


def _group(
    program: Program,
    select: Op,
    moved: Op | None,
    grouped: Op,
    product: Op,
) -> list[Op] | None:
    """The product of the features of one group, and what is done with it.

    moved: the permutation of the dimensions of `grouped`, if there is one.
    """
    *rows, features = program.metas[product.name].shape
    shape = program.metas[grouped.name].shape
    order = list(range(len(shape)))
    if moved is not None:
        order = [dim % len(shape) for dim in moved.args[1]]
    dim = order[select.args[1] % len(shape)]
    width = features // shape[dim]
    if math.prod(shape[:dim]) != math.prod(rows) or width < FEWEST:
        return None
    index = select.args[2] % shape[dim]
    name = f"{select.name}_{product.name}"
    ops = [*_product(product, name, (index * width, (index + 1) * width))]
    sizes = [*shape[:dim], *shape[dim + 1 :]]
    parts = f"{select.name}_{grouped.name}"
    reshape = torch.ops.aten.reshape.default
    ops.append(Op(parts, reshape, (Ref(name), sizes), {}, grouped.line))
    left = [each - (each > dim) for each in order if each != dim]
    permute = torch.ops.aten.permute.default
    ops.append(Op(select.name, permute, (Ref(parts), left), {}, select.line))
    return ops


def with_two_passes(program: Program, inference: Inference) -> Program:
    """The program with each group norm as statistics and their application.

    Statistics need all elements of a group; applying them does not, so a loop can.
    """
    return rewritten(program, inference, _passes)


def _passes(op: Op) -> list[Op] | None:
    if op.key != "aten.group_norm":
        return None
    x, groups, weight, bias, eps, _ = arguments_of(op).values()
    both = f"{op.name}_both"
    mean, rstd = f"{op.name}_mean", f"{op.name}_rstd"
    applied = (x, Ref(mean), Ref(rstd), weight, bias)
    return [
        Op(both, group_norm_statistics, (x, groups, eps), {}, op.line),
        Op(mean, operator.getitem, (Ref(both), 0), {}, op.line),
        Op(rstd, operator.getitem, (Ref(both), 1), {}, op.line),
        Op(op.name, group_norm_apply, applied, {}, op.line),
    ]


def with_losses(program: Program, inference: Inference) -> Program:
    """The program with losses of classes as a sum of one for each target."""
    makers, _ = ends_of(program)
    return rewritten(program, inference, lambda op: losses_apart(program, op, makers))


def rejoined(program: Program) -> Program:
    """The program with two passes joined again if neither is in a loop."""
    made = {step.name: step for step in program.ops if isinstance(step, Op)}
    ops: list[Step] = []
    for step in program.ops:
        if (
            isinstance(step, Op)
            and step.target is group_norm_apply
            and step.args[1].name in made  # not where a loop makes the mean
        ):
            x, mean, _, weight, bias = step.args
            both = made[mean.name].args[0].name
            _, groups, eps = made[both].args
            args = (x, groups, weight, bias, eps)
            joined = torch.ops.aten.group_norm.default
            ops.append(Op(step.name, joined, args, {}, step.line))
        else:
            ops.append(step)
    return without_dead(replace(program, ops=ops))
