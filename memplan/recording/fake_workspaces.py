"""What the CPU's convolutions ask for within themselves, as measured.

Of all kernels' workspaces these are the ones that count: oneDNN works on blocked copies
of a convolution's input, weight and output. Forward it holds the three at once, and
then the result beside its blocked form; backward likewise, the input's gradient before
the weight's. Where torch's own kernel serves (one image, one thread, one group), it
unfolds the image into columns. On a GPU libraries choose among kernels of different
appetites: nothing is assumed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Workspace:
    """Bytes of what is held at once: before the result at each place, and after it."""

    before: tuple[tuple[int, ...], ...] = ()
    after: tuple[tuple[int, ...], ...] = ()


NONE = Workspace()


def workspace(torch: Any, func: Any, args: Any, result: Any) -> Workspace:
    """Of an operator of the CPU that is about to give `result`."""
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
    """Whether oneDNN serves a convolution of these inputs."""
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
