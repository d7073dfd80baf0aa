"""Normalisations as numbers, and folded into the weights of convolutions."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.weights import fetch
from memplan.fusing.layers import Norm
from memplan.fusing.nodes import Joined

PIECE = 1 << 16  # weights that are scaled at a time


def scale_and_shift(model: Any, norm: Norm) -> tuple[Any, Any]:
    """Of each channel, float64: x * scale + shift is the normalised x."""
    mean, var = fetch(model, norm.mean).double(), fetch(model, norm.var).double()
    scale = (var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * fetch(model, norm.weight).double()
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + fetch(model, norm.bias).double()
    return scale, shift


def as_planes(weight: Any) -> Any:
    """A weight (k, c, h, w): that of a linear layer (k, c) as one of a 1×1 kernel."""
    return weight if weight.dim() == 4 else weight[:, :, None, None]


def folded(model: Any, node: Joined) -> tuple[Any, Any]:
    """Weight (k, c / groups, h, w) and bias (k) or None of a convolution, with the
    normalisations behind it: in the weight's own type, computed in float64."""
    import torch

    weight = as_planes(fetch(model, node.convolution.weight))
    bias = node.convolution.bias
    added = None if bias is None else fetch(model, bias)
    if not node.norms:
        return weight.detach(), None if added is None else added.detach()
    factor = weight.new_ones(weight.shape[0], dtype=torch.float64)
    total = torch.zeros_like(factor) if added is None else added.detach().double()
    for norm in node.norms:
        scale, shift = scale_and_shift(model, norm)
        factor, total = factor * scale, total * scale + shift
    return _scaled(weight.detach(), factor), total.to(weight.dtype)


def _scaled(weight: Any, factor: Any) -> Any:
    """Each output channel times its factor; the wide products stay in cache."""
    import torch

    found = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows = max(1, PIECE // max(1, factor.numel() and weight[0].numel()))
    pieces = (each.split(rows) for each in (found, weight, factor.view(-1, 1, 1, 1)))
    for target, part, scale in zip(*pieces, strict=True):
        target.copy_(part * scale)  # in float64
    return found
