"""Where tensors lie in memory, as kernels are told: an address and two strides."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan.errors import UsageError
from memplan.fusing.operations import Pool

if TYPE_CHECKING:
    from torch import Tensor


WIDEST = 16  # float32 of the widest vector


class Placed(NamedTuple):
    """A tensor's address, and elements from image to image and from point to point."""

    tensor: Tensor
    address: int
    image: int
    pixel: int


def dtype_name(x: Tensor) -> str:
    """As in "float32"."""
    return str(x.dtype).removeprefix("torch.")


def layout_of(x: Tensor) -> str:
    """The layout that a tensor (n, c, h, w) is in, "channels_first" if in neither."""
    first = place(x, "channels_first") is not None
    if not first and place(x, "channels_last") is not None:
        return "channels_last"
    if first and place(x, "channels_last") is not None:  # one point, or one channel
        import torch

        contiguous = x.is_contiguous()
        last = not contiguous and x.is_contiguous(memory_format=torch.channels_last)
        return "channels_last" if last else "channels_first"
    return "channels_first"


def place(x: Tensor, layout: str) -> Placed | None:
    """A tensor (n, c, h, w) of this layout as it lies in memory; None if it does not.

    Images may lie apart. Channels last, points may too: the tensor may be some of the
    channels of a wider one.
    """
    images, channels, height, width = x.shape
    image, channel, row, column = x.stride()
    if layout == "channels_first":
        pixel = 1
        expected = (height * width, width, 1)
    else:
        pixel = column if width > 1 else row if height > 1 else channels
        if pixel < channels:
            return None
        expected = (1, width * pixel, pixel)
    strides = zip(
        (channels, height, width), (channel, row, column), expected, strict=True
    )
    if any(size > 1 and stride != want for size, stride, want in strides):
        return None
    if images <= 1:
        image = 0
    return Placed(x, x.data_ptr(), image, pixel)


def in_layout(x: Tensor, layout: str) -> Tensor:
    """The tensor itself if it is in this layout, else a copy that is."""
    import torch

    if place(x, layout) is not None:
        return x
    last = layout == "channels_last"
    form = torch.channels_last if last else torch.contiguous_format
    return torch.empty_like(x, memory_format=form).copy_(x)


def placed_operand(
    kind: str, operand: Tensor, shape: tuple[int, ...], x: Tensor, layout: str
) -> Placed:
    """An operand of this kind for values of this shape; raises UsageError.

    "channel" is (c) of float32; "image" is (n, c) or (n, c, 1, 1) and "tensor" is of
    the values' own shape, both of the input's dtype. Copied if it lies otherwise.
    """
    import torch

    wanted = {"channel": shape[1:2], "image": shape[:2], "tensor": shape}[kind]
    dtype = torch.float32 if kind == "channel" else x.dtype
    given = tuple(operand.shape)
    if kind == "image" and given == (*wanted, 1, 1):
        operand, given = operand.flatten(1), wanted
    if given != tuple(wanted) or operand.dtype != dtype:
        raise UsageError(
            f'an operand "{kind}" is {given} of {operand.dtype}, '
            f"and should be {tuple(wanted)} of {dtype}"
        )
    if operand.device.type != "cpu":
        raise UsageError(f"operands are on the CPU, and not on {operand.device}")
    if kind != "tensor":
        operand = operand.contiguous()
        return Placed(
            operand, operand.data_ptr(), shape[1] if kind == "image" else 0, 0
        )
    operand = in_layout(operand, layout)
    found = place(operand, layout)
    assert found is not None
    return found


def taps(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weights (c, 1, height, width) and bias (c) of a depthwise convolution as kernels
    read them: float32 (height * width + 1, c or more), a row for each tap and one for
    the bias, zeros behind the channels up to a whole vector."""
    import torch

    channels, _, height, width = weight.shape
    area = height * width
    found = torch.zeros(area + 1, -(-channels // WIDEST) * WIDEST)
    found[:area, :channels] = weight.detach().reshape(channels, area).T
    if bias is not None:
        found[area, :channels] = bias.detach()
    return found


def placed_taps(operand: Tensor, pool: Pool, channels: int) -> Placed:
    """The operand "taps" of a depthwise convolution; raises UsageError."""
    import torch

    rows, columns = prod(pool.kernel) + 1, -(-channels // WIDEST) * WIDEST
    shape, dtype = tuple(operand.shape), operand.dtype
    if shape != (rows, columns) or dtype != torch.float32 or operand.is_cuda:
        raise UsageError(
            f'an operand "taps" is {shape} of {dtype}, '
            f"and should be {(rows, columns)} of torch.float32"
        )
    operand = operand.contiguous()
    return Placed(operand, operand.data_ptr(), 0, columns)
