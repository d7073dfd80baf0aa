"""The registry of rules: one line for each file of them."""

from __future__ import annotations

from memplan.chunking.rules import elementwise, layout, products, resize, spatial
from memplan.chunking.rules.flow import RULES, Call, Flow, Slice
from memplan.chunking.rules.totals import accumulation
from memplan.graph.program import Argument, Meta, Metas

# Importing a file registers its rules.
FAMILIES = (elementwise, layout, products, resize, spatial)


def flow(call: Call, out: Slice) -> Flow | None:
    """How `call` makes the slice `out` of its result; None if it cannot.

    An operator without a rule cannot: it runs whole, outside of loops. Neither can one
    whose shapes or arguments depend on data. Of a total, it is an Accumulation.
    """
    metas = (call.result, *call.operands)
    if not (_known((call.op.args, call.op.kwargs)) and all(map(_sized, metas))):
        return None
    if out.total:
        return accumulation(call, out)
    rule = RULES.get(call.op.key)
    if rule is None:
        return None
    if not 0 <= out.dim < len(call.shape) or call.shape[out.dim] < 2:
        return None
    if 0 in call.shape:
        return None
    return rule(call, out)


def _known(value: Argument) -> bool:
    """Whether a nest of arguments holds no symbolic number."""
    if isinstance(value, dict):
        return all(map(_known, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_known, value))
    return type(value).__name__ not in {"SymInt", "SymFloat", "SymBool", "Node"}


def _sized(meta: Metas) -> bool:
    """Whether all sizes of a tensor, or of each of several, are plain integers."""
    if isinstance(meta, Meta):
        return all(type(size) is int for size in meta.shape)
    return isinstance(meta, tuple) and bool(meta) and all(map(_sized, meta))
