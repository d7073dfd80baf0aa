"""Convolutions by oneDNN as torch has it: weights packed once, additions fused.

The operators are torch's own and private: where they are not there, or refuse, the
convolution runs as torch.nn.functional has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import conv2d, linear, pad

from memplan.fusing.layers import Convolution


@dataclass(frozen=True)
class Packed:
    """Weights of a convolution: blocked for oneDNN, or plain."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    blocked: bool


def available() -> bool:
    """Whether torch has the operators."""
    return bool(torch.backends.mkldnn.is_available()) and all(
        hasattr(torch.ops.mkldnn, name)
        for name in ("_convolution_pointwise", "_reorder_convolution_weight")
    )


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    convolution: Convolution,
    size: tuple[int, ...],
) -> Packed:
    """Weights for inputs of shape `size`, (n, c, h, w)."""
    numbers = _padding(convolution), convolution.stride, convolution.dilation
    if any(convolution.behind):
        size = tuple(_padded(weight.new_empty(size, device="meta"), convolution).shape)
    if available() and weight.device.type == "cpu" and tuple(size[2:]) != (1, 1):
        try:
            # It is a module of torch that brings the meta kernels along.
            blocked = torch.ops.mkldnn._reorder_convolution_weight(
                weight.detach(), *numbers, convolution.groups, list(size)
            )
            return Packed(blocked, bias, True)
        except RuntimeError:
            pass
    return Packed(weight.detach(), bias, False)


def run(
    x: torch.Tensor,
    packed: Packed,
    convolution: Convolution,
    added: torch.Tensor | None,
    activation: tuple[float, float] | None,
) -> torch.Tensor:
    """The convolution of x, plus `added` if there is one, clamped to `activation`."""
    given, weight, bias = convolution, packed.weight, packed.bias
    if any(given.behind):  # it knows only padding that is the same in front and behind
        x = _padded(x, given)
    numbers = given.stride, _padding(given), given.dilation, given.groups
    if packed.blocked:
        numbers = numbers[1], numbers[0], *numbers[2:]  # it has the padding first
        # Its own activations make numbers of NaN, so they are done after it.
        if added is None:
            y = torch.ops.mkldnn._convolution_pointwise(
                x, weight, bias, *numbers, "none", [], ""
            )
        else:
            y = torch.ops.mkldnn._convolution_pointwise.binary(
                x, added, weight, bias, *numbers, "add", 1.0, None, [], ""
            )
            added = None
    elif x.shape[2:] == weight.shape[2:] == (1, 1) and given.groups == 1:
        y = linear(x.flatten(1), weight.flatten(1), bias)[:, :, None, None]
    else:
        y = conv2d(x, weight, bias, *numbers)
    y = y if added is None else y.add_(added)
    if activation is None:
        return y
    return y.clamp_(*activation) if activation != (0.0, math.inf) else y.relu_()


def _padding(convolution: Convolution) -> tuple[int, int]:
    return (0, 0) if any(convolution.behind) else convolution.padding


def _padded(x: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    (down, across), (below, right) = convolution.padding, convolution.behind
    return pad(x, (across, across + right, down, down + below))
