"""Layers that kernels have no form of, as layers that they have."""

from __future__ import annotations

from memplan.fusing.branches import with_one_branch
from memplan.fusing.origins import Origins
from memplan.fusing.phases import with_phases
from memplan.fusing.volumes import with_volumes
from memplan.graph.infer import Inference
from memplan.graph.program import Program


def with_rewrites(
    program: Program, inference: Inference, origins: Origins | None = None
) -> Program:
    """The program with convolutions of three dimensions, transposed and parallel ones
    as plain ones. Results are equal but for rounding. origins: gets what is made."""
    for rewritten in (with_volumes, with_phases, with_one_branch):
        program = rewritten(program, inference, origins)
    return program
