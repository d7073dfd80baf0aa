"""Whether a fused network takes more memory than the model in whose place it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memplan.fusing.engine.build import Engine
from memplan.graph.measure import activation_peak

NO_MORE = 1.02  # times the model's own peak, above which it takes more
SLACK = 1 << 20  # bytes more that are nothing to speak of


def room(peak: int) -> int:
    """What a fused network may take where the model takes so many bytes."""
    return int(peak * NO_MORE) + SLACK


def fits(engine: Engine, inputs: dict[str, Any], model: Callable[[], Any]) -> bool:
    """Whether an engine that ran before takes no more than the model by what torch's
    allocator hands out, and the engine's arena: a program in Python holds values longer
    than their last use. False where another profiler keeps it from being measured."""
    try:
        plain = activation_peak(model)
        fused = activation_peak(lambda: engine.run(inputs)) + engine.arena.bytes
    except RuntimeError:
        return False
    return fused <= room(plain)
