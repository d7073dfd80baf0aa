"""All operators' rules, by the operator's name without its overload."""

from __future__ import annotations

from memplan.chunking.rules import elementwise
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice

RULES: dict[str, Rule] = {**elementwise.RULES}


def flow(call: Call, out: Slice) -> Flow | None:
    """How `call` makes the slice `out` of its result; None if it cannot.

    An operator without a rule cannot: it runs whole, outside of loops.
    """
    rule = RULES.get(call.op.key)
    if rule is None or call.shape[out.dim] == 1:
        return None
    return rule(call, out)
