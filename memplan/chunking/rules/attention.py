"""Scaled dot-product attention: batches, heads, and queries."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from memplan.chunking.rules.arguments import given, needing, shape
from memplan.chunking.rules.elementwise import broadcast
from memplan.chunking.rules.flow import Bound, Call, Flow, Rule, Slice
from memplan.chunking.rules.lowered import causal_attention


def attention(call: Call, out: Slice) -> Flow | None:
    """Query [..., L, E], key [..., S, E], value [..., S, V]; result [..., L, V].

    Not along V, which would repeat all scores; not with dropout.
    """
    arguments = given(call)
    rank = len(call.shape)
    if arguments["dropout_p"] != 0 or rank < 3 or out.dim == rank - 1:
        return None
    if out.dim == rank - 2:
        return _queries(call, out, arguments)
    slices: dict[str, Slice | None] = {}
    for name in ("query", "key", "value"):
        sizes = shape(call, name)
        if sizes is None or len(sizes) != rank:
            return None
        slices[name] = out if sizes[out.dim] != 1 else None
        shared = Fraction(sizes[out.dim], call.shape[out.dim])
        if shared == 1 or sizes[out.dim] == 1:
            continue
        # Grouped queries: several of their heads share one of keys and values.
        if out.dim != rank - 3 or not arguments["enable_gqa"]:
            return None
        slices[name] = out.along(out.dim, shared)
        if shared.numerator != 1 or slices[name] is None:
            return None
    return Flow(needing(call, {**slices, "attn_mask": _mask(call, out)}))


def _mask(call: Call, out: Slice) -> Slice | None:
    return broadcast(out, len(call.shape), shape(call, "attn_mask") or ())


def _queries(call: Call, out: Slice, arguments: dict[str, Any]) -> Flow | None:
    """Keys and values whole; of a causal mask, the rows of the window."""
    needs = needing(call, {"query": out, "attn_mask": _mask(call, out)})
    if not arguments["is_causal"]:
        return Flow(needs)
    keys = shape(call, "key")
    if keys is None or arguments["attn_mask"] is not None:
        return None
    window = call.window(out)
    args = (
        *(arguments[name] for name in ("query", "key", "value")),
        Bound(window, low=1, high=0),
        Bound(window, low=0, high=1, most=keys[-2]),
        {name: arguments[name] for name in ("scale", "enable_gqa")},
    )
    return Flow(needs, causal_attention, args, {})


RULES: dict[str, Rule] = {"aten.scaled_dot_product_attention": attention}
