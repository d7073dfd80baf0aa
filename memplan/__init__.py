"""Record what a PyTorch program allocates, plan that memory, apply the plan.

The public names are loaded on first use, so that importing memplan costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.version import __version__

if TYPE_CHECKING:
    from memplan.applying.cuda import stats as stats
    from memplan.applying.session import apply as apply
    from memplan.budgeting.solve import solve as solve
    from memplan.chunking.chunk import chunk as chunk
    from memplan.chunking.options import BudgetError as BudgetError
    from memplan.chunking.options import ChunkOptions as ChunkOptions
    from memplan.chunking.plan import ChunkPlan as ChunkPlan
    from memplan.chunking.planfile import read_chunk_plan as read_chunk_plan
    from memplan.chunking.planfile import write_chunk_plan as write_chunk_plan
    from memplan.chunking.sliced_loss import chunk_loss as chunk_loss
    from memplan.compiling.bench import CompileOptions as CompileOptions
    from memplan.compiling.compile import compile as compile  # noqa: A004
    from memplan.compiling.compile import compile_front as compile_front
    from memplan.compiling.emit import emit as emit
    from memplan.compiling.fuse import fuse as fuse
    from memplan.compiling.levels import compile_levels as compile_levels
    from memplan.compiling.report import CompilePlan as CompilePlan
    from memplan.core.plan import Plan as Plan
    from memplan.core.planfile import read_plan as read_plan
    from memplan.core.planfile import write_plan as write_plan
    from memplan.core.problem import Problem as Problem
    from memplan.core.verify import verify as verify
    from memplan.errors import MemplanError as MemplanError
    from memplan.errors import NoPlanError as NoPlanError
    from memplan.fusing.options import FuseOptions as FuseOptions
    from memplan.plotting.timeline import plot as plot
    from memplan.recording.boundary import interrupt as interrupt
    from memplan.recording.boundary import resume as resume
    from memplan.recording.boundary import step as step
    from memplan.recording.boundary import unplanned as unplanned
    from memplan.recording.record import record as record
    from memplan.reporting.check import Limits as Limits
    from memplan.reporting.check import check as check
    from memplan.reporting.diff import diff as diff
    from memplan.reporting.estimate import Estimate as Estimate
    from memplan.reporting.estimate import estimate as estimate
    from memplan.reporting.live import live_at as live_at
    from memplan.reporting.stats import summarize as summarize
    from memplan.trace.read import buffers_of as buffers_of
    from memplan.trace.read import read_trace as read_trace
    from memplan.trace.trace import Trace as Trace
    from memplan.trace.write import write_trace as write_trace

_HOMES = {
    "BudgetError": "memplan.chunking.options",
    "ChunkOptions": "memplan.chunking.options",
    "ChunkPlan": "memplan.chunking.plan",
    "CompileOptions": "memplan.compiling.bench",
    "CompilePlan": "memplan.compiling.report",
    "Estimate": "memplan.reporting.estimate",
    "FuseOptions": "memplan.fusing.options",
    "Limits": "memplan.reporting.check",
    "MemplanError": "memplan.errors",
    "NoPlanError": "memplan.errors",
    "Plan": "memplan.core.plan",
    "Problem": "memplan.core.problem",
    "Trace": "memplan.trace.trace",
    "apply": "memplan.applying.session",
    "buffers_of": "memplan.trace.read",
    "check": "memplan.reporting.check",
    "chunk": "memplan.chunking.chunk",
    "chunk_loss": "memplan.chunking.sliced_loss",
    "compile": "memplan.compiling.compile",
    "compile_front": "memplan.compiling.compile",
    "compile_levels": "memplan.compiling.levels",
    "diff": "memplan.reporting.diff",
    "emit": "memplan.compiling.emit",
    "estimate": "memplan.reporting.estimate",
    "fuse": "memplan.compiling.fuse",
    "interrupt": "memplan.recording.boundary",
    "live_at": "memplan.reporting.live",
    "plot": "memplan.plotting.timeline",
    "read_chunk_plan": "memplan.chunking.planfile",
    "read_plan": "memplan.core.planfile",
    "read_trace": "memplan.trace.read",
    "record": "memplan.recording.record",
    "resume": "memplan.recording.boundary",
    "solve": "memplan.budgeting.solve",
    "stats": "memplan.applying.cuda",
    "step": "memplan.recording.boundary",
    "summarize": "memplan.reporting.stats",
    "unplanned": "memplan.recording.boundary",
    "verify": "memplan.core.verify",
    "write_chunk_plan": "memplan.chunking.planfile",
    "write_plan": "memplan.core.planfile",
    "write_trace": "memplan.trace.write",
}

__all__ = [
    "BudgetError",
    "ChunkOptions",
    "ChunkPlan",
    "CompileOptions",
    "CompilePlan",
    "Estimate",
    "FuseOptions",
    "Limits",
    "MemplanError",
    "NoPlanError",
    "Plan",
    "Problem",
    "Trace",
    "__version__",
    "apply",
    "buffers_of",
    "check",
    "chunk",
    "chunk_loss",
    "compile",
    "compile_front",
    "compile_levels",
    "diff",
    "emit",
    "estimate",
    "fuse",
    "interrupt",
    "live_at",
    "plot",
    "read_chunk_plan",
    "read_plan",
    "read_trace",
    "record",
    "resume",
    "solve",
    "stats",
    "step",
    "summarize",
    "unplanned",
    "verify",
    "write_chunk_plan",
    "write_plan",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
