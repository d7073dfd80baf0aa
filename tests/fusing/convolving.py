"""A convolution by memplan's kernels, of tensors that lie in any way."""

from __future__ import annotations

from typing import Any

from memplan.fusing.convolution import Epilogue, Packed, bind


def convolve(x: Any, packed: Packed, epilogue: Epilogue | None = None) -> Any:
    """The convolution of `x` (n, c, h, w), a new tensor, channels last."""
    import torch

    last = torch.channels_last
    images, _, height, width = x.shape
    size = (images, packed.geometry.channels_out, *packed.geometry.size(height, width))
    out = torch.empty(size, memory_format=last)
    x = x.detach().contiguous(memory_format=last)
    bound = bind(packed, x, out, epilogue=epilogue)
    if out.numel():
        bound(torch.get_num_threads())
    return out
