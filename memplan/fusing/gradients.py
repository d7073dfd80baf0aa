"""Results of inference that say why they have no gradients when asked for one."""

from __future__ import annotations

import functools
from typing import Any

from memplan.errors import UsageError
from memplan.fusing.front.nest import flatten

REASON = (
    "memplan.fuse runs a model's inference: its results have no gradients. Run under "
    "torch.no_grad(), or train the model that was fused, which is at .model"
)


@functools.cache
def _no_gradient() -> Any:
    import torch

    class NoGradient(torch.autograd.Function):  # type: ignore[misc]
        """Its result looks differentiable, and says why it is not."""

        @staticmethod
        def forward(ctx: Any, anchor: Any, value: Any) -> Any:
            ctx.mark_dirty(value)  # and so no view, which could not be written to
            return value

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise UsageError(REASON)

    return NoGradient


def refusing(result: Any, anchor: Any, given: set[int]) -> Any:
    """`result` with tensors that raise UsageError where a gradient is asked of them.

    anchor: a parameter that wants one. given: addresses of the caller's own memory: a
    tensor that lies there is the caller's, and stays as it is.
    """
    import torch

    leaves, rebuild = flatten(result)
    made: dict[int, Any] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or id(leaf) in made or leaf.requires_grad:
            continue
        theirs = leaf.untyped_storage().data_ptr() in given
        if (leaf.is_floating_point() or leaf.is_complex()) and not theirs:
            fresh = leaf.clone() if leaf._is_view() else leaf
            made[id(leaf)] = _no_gradient().apply(anchor, fresh)
    return rebuild([made.get(id(leaf), leaf) for leaf in leaves])
