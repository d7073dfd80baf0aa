"""Record what a PyTorch program allocates, plan that memory, apply the plan.

The public names are loaded on first use, so that importing memplan costs nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memplan.apply.cuda import stats as stats
    from memplan.apply.session import apply as apply
    from memplan.core.plan import Plan as Plan
    from memplan.core.planfile import read_plan as read_plan
    from memplan.core.planfile import write_plan as write_plan
    from memplan.core.problem import Problem as Problem
    from memplan.core.verify import verify as verify
    from memplan.record.boundary import step as step
    from memplan.record.interruption import interrupt as interrupt
    from memplan.record.interruption import resume as resume
    from memplan.record.interruption import unplanned as unplanned
    from memplan.record.session import record as record
    from memplan.solve.solve import solve as solve
    from memplan.trace.read import read_trace as read_trace
    from memplan.trace.trace import Trace as Trace
    from memplan.trace.write import write_trace as write_trace

_HOMES = {
    "Plan": "memplan.core.plan",
    "Problem": "memplan.core.problem",
    "Trace": "memplan.trace.trace",
    "apply": "memplan.apply.session",
    "interrupt": "memplan.record.interruption",
    "read_plan": "memplan.core.planfile",
    "read_trace": "memplan.trace.read",
    "record": "memplan.record.session",
    "resume": "memplan.record.interruption",
    "solve": "memplan.solve.solve",
    "stats": "memplan.apply.cuda",
    "step": "memplan.record.boundary",
    "unplanned": "memplan.record.interruption",
    "verify": "memplan.core.verify",
    "write_plan": "memplan.core.planfile",
    "write_trace": "memplan.trace.write",
}

__all__ = [
    "Plan",
    "Problem",
    "Trace",
    "__version__",
    "apply",
    "interrupt",
    "read_plan",
    "read_trace",
    "record",
    "resume",
    "solve",
    "stats",
    "step",
    "unplanned",
    "verify",
    "write_plan",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`memplan.record` is a function here and a folder there: the function wins.

    Importing a submodule binds it in its package; for these names it must not.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
