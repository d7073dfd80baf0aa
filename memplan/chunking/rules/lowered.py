"""Calls that stand for an operator inside a loop.

Each is whole by itself, using torch and its arguments alone: its source is copied into
the programs that are written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def windowed_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    options: tuple[Any, ...],
    part: tuple[int, int, int],
) -> torch.Tensor:
    """A convolution over a part of one dimension of x, [N, C, ...].

    options: stride, padding, dilation, groups. part: the dimension, and the zeros that
    the padding still adds in front and behind; its entry in `padding` is not used.
    """
    import torch

    (stride, padding, dilation, groups), (dim, before, after) = options, part

    if before or after:
        pads = [0] * (2 * (x.dim() - dim))
        pads[-2:] = [before, after]
        x = torch.nn.functional.pad(x, pads)
    rest = [0 if i == dim - 2 else pad for i, pad in enumerate(padding)]
    return torch.ops.aten.convolution.default(
        x, weight, bias, stride, rest, dilation, False, [0] * len(rest), groups
    )


def windowed_pool(
    x: torch.Tensor,
    name: str,
    options: tuple[Any, ...],
    part: tuple[int, int, int],
    fill: float,
) -> torch.Tensor:
    """max_pool2d or avg_pool2d over a part of one dimension of x, [..., H, W].

    options: the operator's arguments after x, without padding of that dimension. part:
    the dimension, and the elements that the padding still adds in front and behind,
    each of them `fill`.
    """
    import torch

    dim, before, after = part
    if before or after:
        pads = [0] * (2 * (x.dim() - dim))
        pads[-2:] = [before, after]
        x = torch.nn.functional.pad(x, pads, value=fill)
    return getattr(torch.ops.aten, name).default(x, *options)


def windowed_transposed_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    options: tuple[Any, ...],
    groups: int,
    part: tuple[int, int, int, int],
) -> torch.Tensor:
    """A part of one dimension of a transposed convolution of a part of x, [N, C, ...].

    options: stride, padding, dilation and output padding, without padding of that
    dimension. part: the dimension, where the result for x begins, and where the wanted
    part begins and ends.
    """
    import torch

    (stride, padding, dilation, beyond), (dim, begin, low, high) = options, part
    made = torch.ops.aten.convolution.default(
        x, weight, bias, stride, padding, dilation, True, beyond, groups
    )
    return made.narrow(dim, low - begin, high - low)


def windowed_nearest(
    x: torch.Tensor, name: str, sizes: list[int], part: tuple[int, int, int, int]
) -> torch.Tensor:
    """A part of one dimension of a nearest interpolation of a part of x, [N, C, ...].

    sizes: of the interpolated part, without N and C. part: the dimension, where the
    result for x begins, and where the wanted part begins and ends.
    """
    import torch

    dim, begin, low, high = part
    made = getattr(torch.ops.aten, name).default(x, sizes)
    return made.narrow(dim, low - begin, high - low)


def windowed_linear(
    x: torch.Tensor,
    name: str,
    options: tuple[list[int], bool],
    lengths: tuple[int, int],
    part: tuple[int, int, int, int],
) -> torch.Tensor:
    """A part of one dimension of a linear interpolation of a part of x, [N, C, ...].

    options: the sizes of the wanted part without N and C, and align_corners. lengths:
    of the whole dimension, before and after. part: the dimension, where x's part
    begins, and where the wanted part begins and ends.
    """
    import torch

    (sizes, corners), (old, new), (dim, begin, low, high) = options, lengths, part
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    at = torch.arange(low, high, dtype=wide, device=x.device)
    if corners:
        at = at * ((old - 1) / max(1, new - 1))
    else:
        at = ((at + 0.5) * (old / new) - 0.5).clamp(min=0)
    above = at.long().clamp(max=old - 1)
    below = (above + 1).clamp(max=old - 1)
    share = (at - above).to(x.dtype).view([-1, *[1] * (x.dim() - 1 - dim)])
    upper = x.index_select(dim, above - begin)
    mixed = torch.lerp(upper, x.index_select(dim, below - begin), share)
    if list(mixed.shape[2:]) == list(sizes):
        return mixed
    return getattr(torch.ops.aten, name).default(mixed, sizes, corners)


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: int,
    keys: int,
    options: dict[str, object],
) -> torch.Tensor:
    """Causal attention of the queries from row `start` on to the first `keys` keys.

    Row i of all queries attends to keys [0, i], as torch's is_causal has it.
    options: scale, enable_gqa.
    """
    import torch

    key, value = key.narrow(-2, 0, keys), value.narrow(-2, 0, keys)
    mask = None
    if start:
        rows = torch.arange(start, start + query.shape[-2], device=query.device)
        mask = rows[:, None] >= torch.arange(keys, device=query.device)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, 0.0, mask is None, **options
    )


def grouped_rows(
    rows: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor,
    start: int,
    stop: int,
    product: str,
) -> torch.Tensor:
    """The rows [start, stop) of a product of each row with the matrix of its group.

    rows: [stop - start, E]; weight: [G, E, F]; offs: [G], where each group ends among
    all rows; product: the operator's full name.
    """
    from operator import attrgetter

    import torch

    ends = (offs - start).clamp(0, stop - start)
    return attrgetter(product)(torch.ops)(rows, weight, ends)


def group_norm_statistics(
    x: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each group of channels of x, [N, C, ...].

    Both are [N, G, 1, ...] in float32 or wider. One group of one sample is taken at a
    time, of 64 and more at most a 32nd.
    """
    import torch

    width = x.shape[1] // groups
    means, scales = [], []
    for sample in x.unbind(0):
        for part in sample.split(width * max(1, groups // 32)):
            wide = (part.float() if part.dtype.itemsize < 4 else part).contiguous()
            channels, pixels = part.shape[0], part[0].numel()
            _, mean, scale = torch.native_group_norm(
                wide.unsqueeze(0),
                None,
                None,
                1,
                channels,
                pixels,
                channels // width,
                eps,
            )
            means.append(mean.reshape(-1))
            scales.append(scale.reshape(-1))
    sizes = [x.shape[0], groups, *[1] * (x.dim() - 2)]
    return torch.cat(means).view(sizes), torch.cat(scales).view(sizes)


def group_norm_apply(
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """(x - mean) * rstd * weight + bias, in x's dtype.

    mean, rstd: [N, G, 1, ...]; weight, bias: [C], or None for 1 and 0.
    """
    import torch

    sizes = [1, -1, *[1] * (x.dim() - 2)]
    width = x.shape[1] // mean.shape[1]
    if width > 1:
        mean, rstd = (each.repeat_interleave(width, 1) for each in (mean, rstd))
    scale = rstd if weight is None else rstd * weight.view(sizes)
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias.view(sizes)
    return torch.addcmul(shift, x, scale).to(x.dtype)
