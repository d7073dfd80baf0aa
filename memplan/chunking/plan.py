"""What chunking decided about a model, and what that was worth."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import TypedDict

from memplan.chunking.region import Region
from memplan.graph.program import Loop, Op, Program, Step


class Storage(TypedDict):
    """A storage that is live at a peak."""

    name: str
    bytes: int


class Peak(TypedDict, total=False):
    """Where a program's peak is, and the largest storages that are live there.

    beyond: measured bytes beyond the estimate, which is of operators whose operands are
    freed after their last use; a model's variables may hold them longer. Empty if there
    are no operators.
    """

    module: str
    operator: str
    line: str
    live: list[Storage]
    beyond: int


class RegionRow(TypedDict):
    """A loop as reports show it; depth: 0 for a loop in no other."""

    module: str
    first: str
    last: str
    dimension: int
    extent: int
    step: int
    chunks: int
    operators: int
    depth: int
    line: str


@dataclass(frozen=True)
class Part:
    """One exported module.

    path: in the model, "" for all of it. fingerprint: identifies its graph. regions:
    what runs in chunks there. again: values that are computed again for their last
    users, instead of kept, in the order in which that is decided.
    """

    path: str
    fingerprint: str
    regions: tuple[Region, ...]
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChunkPlan:
    """The result of chunking one model for inputs of one shape.

    status: "chunked", "unchanged" (the model fits unchanged, or cannot be exported) or
    "refused". reason: why it is not chunked, or why the search ended early. Bytes are
    of activations, without parameters and inputs: peak_bytes_* are estimates,
    measured_bytes_* the allocator's. peak_before, peak_after: where the estimated peaks
    are. slowdown: measured time, chunked over original, the median of pairs of runs;
    slowdown_low, slowdown_high: where that is with a probability of 90 %; of less than
    five pairs, the least and the largest. left_alone: path of an unchanged submodule ->
    reason. internal_errors: defects of memplan, each with its operator -> how many
    regions were dropped for it. loss_rows: of a model in training mode: by a weight's
    name, the rows of a slice of its logits; the bytes are then of a step, with all
    gradients.
    """

    status: str
    reason: str
    budget_bytes: int
    parts: tuple[Part, ...] = ()
    peak_bytes_before: int = 0
    peak_bytes_after: int = 0
    peak_before: Peak = field(default_factory=Peak)
    peak_after: Peak = field(default_factory=Peak)
    measured_bytes_before: int = 0
    measured_bytes_after: int = 0
    slowdown: float = 1.0
    slowdown_low: float = 1.0
    slowdown_high: float = 1.0
    max_relative_error: float = 0.0
    search_seconds: float = 0.0
    device: str = "cpu"
    torch: str = ""
    regions: tuple[RegionRow, ...] = ()
    left_alone: dict[str, str] = field(default_factory=dict)
    internal_errors: dict[str, int] = field(default_factory=dict)
    loss_rows: dict[str, int] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """The share of the measured peak that chunking removed."""
        before = self.measured_bytes_before
        return 1 - self.measured_bytes_after / before if before else 0.0


def fingerprint(program: Program) -> str:
    """A hash of a program's operators, shapes and order."""
    digest = hashlib.sha256()
    for step in program.ops:
        if isinstance(step, Loop):
            raise TypeError("a program with loops has no fingerprint")
        metas = [program.metas[name] for name in (*step.operands(), step.name)]
        # The text of a function holds its address, which differs between processes.
        function = isinstance(step.target, FunctionType)
        target = step.key if function else str(step.target)
        digest.update(repr((step.name, target, metas)).encode())
        digest.update(repr((step.args, sorted(step.kwargs.items()))).encode())
    digest.update(repr(program.outputs).encode())
    return digest.hexdigest()


def described(program: Program, path: str, depth: int = 0) -> Iterator[RegionRow]:
    """A program's loops as reports show them, nested ones too."""
    for step in program.ops:
        if isinstance(step, Loop):
            output = step.made()[0]
            yield {
                "module": path,
                "first": _outer(_first(step).name),
                "last": _outer(output.inner),
                "dimension": output.dim,
                "extent": step.extent,
                "step": step.step,
                "chunks": -(-step.extent // step.step),
                "operators": len(step.body.ops),
                "depth": depth,
                "line": step.line,
            }
            yield from described(step.body, path, depth + 1)


def _first(loop: Loop) -> Op:
    """The first operator that a loop runs, be it in a loop of its own."""
    step: Step = loop
    while isinstance(step, Loop):
        step = step.body.ops[0]
    return step


def _outer(name: str) -> str:
    while name.endswith("_i"):
        name = name[:-2]
    return name
