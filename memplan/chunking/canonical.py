"""The form of a program in which regions are searched."""

from __future__ import annotations

from memplan.chunking import groupnorm
from memplan.chunking.grouped import with_grouped_heads
from memplan.chunking.masks import without_known_masks
from memplan.chunking.parted import parted
from memplan.graph.infer import Inference
from memplan.graph.program import Program


def searchable(program: Program, inference: Inference) -> Program:
    """`program`, as lowered, with what keeps operators from being sliced undone."""
    for change in (without_known_masks, with_grouped_heads, parted, groupnorm.split):
        program = change(program, inference)
    return program
