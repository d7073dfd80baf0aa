"""Run a model's inference depth-first: the public verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import UsageError
from memplan.fusing.options import FuseOptions

if TYPE_CHECKING:
    import torch


def fuse(model: torch.nn.Module, options: FuseOptions | None = None) -> torch.nn.Module:
    """`model` as a module whose inference on the CPU runs fused, and is faster.

    Element-wise, normalization and pooling layers are joined with the convolutions
    beside them, or run depth-first as stacks whose intermediates stay in the cache, by
    C++ that is generated and compiled once (BrainSlug). All runs in one arena, as by
    `memplan.compile`, but in the model's own order and within no budget. The first call
    with inputs of new shapes compiles, chooses every kernel by time, and compares the
    results with the model's own. If they differ by more than `options.tolerance`, if
    nothing is gained, or if something is not supported, `model` runs unchanged, and one
    warning gives the reason.

    The result uses the model's weights and follows changes in place, except those made
    through ``.data``. Its results have no gradients, and asking for one raises
    UsageError. In training mode, under autocast or with inputs that require gradients
    it runs `model`.

    Of a model of `memplan.chunk`, the loops stay; layers in them are fused as well, if
    that keeps its memory.

    Raises UsageError if `model` is no torch.nn.Module.
    """
    import torch

    from memplan.compiling.lazy import Fused

    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"fuse takes a torch.nn.Module, but got {type(model).__name__}"
        )
    if isinstance(model, Fused):
        model = model.model
    return Fused(model, options or FuseOptions())
