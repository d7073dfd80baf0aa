"""Normalisations as numbers, and folded into the weights of convolutions."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.weights import fetch
from memplan.fusing.layers import Norm
from memplan.fusing.nodes import Joined


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
    weight = as_planes(fetch(model, node.convolution.weight))
    bias = node.convolution.bias
    added = None if bias is None else fetch(model, bias)
    if not node.norms:
        return weight.detach(), None if added is None else added.detach()
    wide = weight.detach().double()
    total = wide.new_zeros(wide.shape[0]) if added is None else added.detach().double()
    for norm in node.norms:
        scale, shift = scale_and_shift(model, norm)
        wide = wide * scale.view(-1, 1, 1, 1)
        total = total * scale + shift
    return wide.to(weight.dtype), total.to(weight.dtype)
