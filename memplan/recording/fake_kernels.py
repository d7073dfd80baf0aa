"""Kernels under fake tensors: data-dependent shapes and CPU workspaces.

An operator whose result depends on values gets the largest possible result. Of CPU
kernels' workspaces only convolutions' count, as measured: oneDNN works on blocked
copies of a convolution's input, weight and output. Forward it holds the three at once,
then the result beside its blocked form; backward likewise, the input's gradient before
the weight's. torch's own kernel (one image, one thread, one group) unfolds the image
into columns. GPU libraries choose among kernels with different workspaces, so nothing
is assumed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


def at_most(torch: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The largest result of `func`, or None for operators it does not know.

    Knows nonzero, masked_select, indexing by masks, and unique.
    """
    aten = torch.ops.aten
    if func is aten.nonzero.default:
        return _places(torch, args[0])
    if func is aten.masked_select.default:
        first, mask = torch.broadcast_tensors(args[0], args[1])
        return first.new_empty((mask.numel(),))
    if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
        indices: list[Any] = []
        for index in args[1]:
            masks = index is not None and index.dtype in (torch.bool, torch.uint8)
            if masks:
                indices += _places(torch, index).unbind(1)
            else:
                indices.append(index)
        return func(args[0], indices, *args[2:], **kwargs)
    if func in (aten._unique2.default, aten._unique.default):
        return _unique(args, kwargs, len(func._schema.returns))
    return None


def _places(torch: Any, mask: Any) -> Any:
    return mask.new_empty((mask.numel(), mask.dim()), dtype=torch.int64)


def _unique(args: Any, kwargs: dict[str, Any], results: int) -> Any:
    values = args[0]
    names = ("sorted", "return_inverse", "return_counts")
    given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    long = values.new_empty((0,)).long
    inverse = values.shape if given.get("return_inverse") else (0,)
    counts = (values.numel(),) if given.get("return_counts") else (0,)
    made = (
        values.new_empty((values.numel(),)),
        long().new_empty(inverse),
        long().new_empty(counts),
    )
    return made[:results]


@dataclass(frozen=True)
class Workspace:
    """Bytes held at once, before and after each result is made."""

    before: tuple[tuple[int, ...], ...] = ()
    after: tuple[tuple[int, ...], ...] = ()


NONE = Workspace()


def workspace(torch: Any, func: Any, args: Any, result: Any) -> Workspace:
    """The workspace of a CPU operator that returns `result`."""
    aten = torch.ops.aten
    if func is aten.convolution.default:
        inputs, weight = args[:2]
        if not _blocked(torch, inputs, args[8]):
            return Workspace(((_columns(inputs, weight, result),),))
        made = _bytes(result)
        held = (_bytes(inputs), _bytes(weight), made)
        return Workspace((held,), ((made,),))
    if func is aten.convolution_backward.default:
        gradient, inputs, weight = args[:3]
        if not _blocked(torch, inputs, args[9]):
            columns = (_columns(inputs, weight, gradient),)
            return Workspace(((), ()), (columns, columns))
        out, given, kernel = map(_bytes, (gradient, inputs, weight))
        return Workspace(
            ((out, kernel, given), (out, given, kernel)), ((given,), (kernel,))
        )
    return NONE


def _blocked(torch: Any, inputs: Any, groups: int) -> bool:
    """Whether oneDNN runs a convolution of these inputs."""
    alone = inputs.shape[0] == 1 and torch.get_num_threads() == 1 and groups == 1
    available: bool = torch.backends.mkldnn.is_available()
    return available and not alone


def _columns(inputs: Any, weight: Any, result: Any) -> int:
    window = prod(weight.shape[2:])
    if window == 1:
        return 0
    pixels = prod(result.shape[2:])
    return int(inputs.shape[1] * window * pixels * inputs.element_size())


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
