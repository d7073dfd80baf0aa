"""Calls of torch whose results are memory of their own, however operands lie."""

from __future__ import annotations

from memplan.fusing.front.trace import has_hooks
from memplan.graph.program import Op

FUNCTIONS = {
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "bmm", "convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("pixel_shuffle", "pixel_unshuffle", "interpolate"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("layer_norm", "group_norm", "softmax", "log_softmax", "gelu", "silu", "mish"),
    *("sigmoid", "tanh", "exp", "sqrt", "neg", "pow", "add", "sub", "mul", "div"),
    *("truediv", "mean", "sum", "amax", "cat", "stack"),
}
MODULES = {
    *("Conv1d", "Conv2d", "Conv3d", "Linear"),
    *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    *("PixelShuffle", "PixelUnshuffle"),
    *("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"),
    *("LayerNorm", "GroupNorm", "Softmax", "Softmax2d", "LogSoftmax"),
    *("GELU", "Sigmoid", "Tanh", "Softplus"),
}


def makes_anew(op: Op) -> bool:
    """Whether the result of `op` is no view of what it takes. False where that is not
    known, as of what a module's hooks make."""
    import torch

    target = op.target
    if not isinstance(target, torch.nn.Module):
        return op.key.rpartition(".")[2] in FUNCTIONS and "out" not in op.kwargs
    own = type(target).__module__.startswith("torch.nn.modules.")
    return own and type(target).__name__ in MODULES and not has_hooks(target)
