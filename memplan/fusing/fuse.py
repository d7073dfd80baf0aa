"""Run a model's inference depth-first: the public verb."""

from __future__ import annotations

from typing import Any

from memplan.errors import UsageError
from memplan.fusing.module import fused_class
from memplan.fusing.options import FuseOptions


def fuse(model: Any, options: FuseOptions | None = None) -> Any:
    """`model` as a module whose inference on the CPU runs fused, and is faster.

    Element-wise, normalisation and pooling layers are joined with the convolutions
    beside them, or run depth-first as stacks whose intermediates stay in the cache, by
    C++ that is generated and compiled once (BrainSlug). All this happens at the first
    call with inputs of new shapes, and then every kernel is chosen by time and the
    results are compared with the model's own: where they differ by more than
    `options.tolerance`, or nothing is gained, or something is not understood, `model`
    runs as it was, with one warning that says why.

    The result uses the model's weights: changes in place are seen, except those made
    through ``.data``. Its results have no gradients, and say so when asked for one; in
    training mode, under autocast or with inputs that want gradients it is `model`.

    Raises UsageError if `model` is no torch.nn.Module.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"a model is a torch.nn.Module, and not {type(model).__name__}"
        )
    return fused_class()(model, options or FuseOptions())
