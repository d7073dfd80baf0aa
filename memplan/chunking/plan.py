"""What chunking decided about a model, and what that was worth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from memplan.chunking.region import Region
from memplan.graph.program import Loop, Op, Program, Step


@dataclass(frozen=True)
class Part:
    """One exported module: its path in the model ("" for all of it), what tells its
    graph from others, and the regions that run in chunks there."""

    path: str
    fingerprint: str
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class ChunkPlan:
    """The result of chunking one model for inputs of one shape.

    status: "chunked", "unchanged" (it fits as it is, or nothing can be exported) or
    "refused"; reason: why, where it is not chunked, or not searched to the end. Bytes
    are of activations, beyond parameters and inputs: peak_bytes_* are estimates,
    measured_bytes_* the allocator's.
    peak_bytes_before counts what variables of the model's Python were seen to hold
    beside what its operators need; peak_before says how much of it that is, as `held`.
    peak_before, peak_after: where the estimated peaks are, as `at_peak` has it.
    slowdown: measured time, chunked over before. left_alone: path of a submodule that
    runs as it was -> why.
    """

    status: str
    reason: str
    budget_bytes: int
    parts: tuple[Part, ...] = ()
    peak_bytes_before: int = 0
    peak_bytes_after: int = 0
    peak_before: dict[str, Any] = field(default_factory=dict)
    peak_after: dict[str, Any] = field(default_factory=dict)
    measured_bytes_before: int = 0
    measured_bytes_after: int = 0
    slowdown: float = 1.0
    max_relative_error: float = 0.0
    search_seconds: float = 0.0
    device: str = "cpu"
    torch: str = ""
    regions: tuple[dict[str, Any], ...] = ()
    left_alone: dict[str, str] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """The share of the activations' peak that is gone, as measured."""
        before = self.measured_bytes_before
        return 1 - self.measured_bytes_after / before if before else 0.0


def fingerprint(program: Program) -> str:
    """What tells a program from others: a hash of its operators, shapes and order."""
    digest = hashlib.sha256()

    def add(step: Step) -> None:
        if isinstance(step, Loop):
            raise TypeError("a program with loops has no fingerprint")
        metas = [program.metas[name] for name in (*step.operands(), step.name)]
        digest.update(repr((step.name, str(step.target), metas)).encode())
        digest.update(repr((step.args, sorted(step.kwargs.items()))).encode())

    for step in program.ops:
        add(step)
    digest.update(repr(program.outputs).encode())
    return digest.hexdigest()


def described(program: Program, path: str) -> list[dict[str, Any]]:
    """A program's loops as reports give them, those inside others too."""
    found: list[dict[str, Any]] = []

    def add(steps: list[Step], depth: int) -> None:
        for step in steps:
            if isinstance(step, Loop):
                output = step.outputs[0]
                found.append(
                    {
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
                )
                add(step.body.ops, depth + 1)

    add(program.ops, 0)
    return found


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
