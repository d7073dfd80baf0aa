"""Attention whose keys and values are repeated for it, by torch's own grouped form."""

from __future__ import annotations

from dataclasses import replace

from memplan.chunking.masks import options_of
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref

THROUGH = {"aten.reshape", "aten._unsafe_view", "aten.clone"}


def with_grouped_heads(program: Program, inference: Inference) -> Program:
    """The program whose attention takes keys and values that several heads of queries
    share once, not repeated for each; where it takes no mask, with which some kernels
    know no groups."""
    makers = {op.name: op for op in program.ops if isinstance(op, Op)}
    new = replace(program, ops=[], metas=dict(program.metas), roots=dict(program.roots))
    for step in program.ops:
        if isinstance(step, Op) and step.key == "aten.scaled_dot_product_attention":
            made = _grouped(program, step, makers)
            inference.add(new, made)
            new.ops.append(made)
        else:
            new.ops.append(step)
    return without_dead(new)


def _grouped(program: Program, op: Op, makers: dict[str, Op]) -> Op:
    options = options_of(op)
    if "attn_mask" in options or "enable_gqa" in options:
        return op
    sources = [_source(program, arg.name, makers) for arg in op.args[1:3]]
    if None in sources:
        return op
    key, value = (program.metas[name] for name in sources if name is not None)
    if key.shape[1] != value.shape[1]:
        return op
    args = (op.args[0], *(Ref(name) for name in sources if name is not None))
    return Op(op.name, op.target, args, {**options, "enable_gqa": True}, op.line)


def _source(program: Program, name: str, makers: dict[str, Op]) -> str | None:
    """What [B, heads, S, D] repeats, each of its heads several times in turn: a value
    [B, groups, S, D]; None if it is nothing such."""
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
