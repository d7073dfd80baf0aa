"""Plans changed in one place or another, sound or not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from memplan.core.plan import Placement, Plan, Provenance

_HOT = {field.name for field in fields(Placement)}
_MADE = {field.name for field in fields(Provenance)}


def changed(plan: Plan, **changes: Any) -> Plan:
    """`plan` with fields of its own, its hot steps' or its provenance's replaced."""
    hot = {name: changes.pop(name) for name in _HOT & changes.keys()}
    made = {name: changes.pop(name) for name in _MADE & changes.keys()}
    plan = replace(plan.coming_from(**made), hot=replace(plan.hot, **hot))
    return replace(plan, **changes)
