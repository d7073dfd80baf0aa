"""The picture of whatever can be drawn."""

from __future__ import annotations

from matplotlib.figure import Figure

from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.plotting.packing import packing
from memplan.plotting.timeline import memory
from memplan.trace.trace import Trace


def plot(source: Trace | Plan, title: str = "") -> Figure:
    """A Trace's memory over time, or a Plan's packing, as a matplotlib Figure.

    It has a `savefig`, and notebooks show it. title: the program's name unless given.
    Raises UsageError for anything else, InputError where there is nothing to draw.
    """
    if isinstance(source, Trace):
        return memory(source, title)
    if isinstance(source, Plan):
        return packing(source, title)
    raise UsageError(f"plot: {type(source).__name__} is neither a Trace nor a Plan")
