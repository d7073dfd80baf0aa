"""Whether the second call of a unit computes what the first one did.

`torch.utils.checkpoint` compares shapes and types of what both calls save for the
backward pass. Of the first calls of each unit some values are compared as well: a part
of each tensor of floating-point numbers in the memory of the CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from memplan.recording.activations import version_of

MOST_VALUES = 4096  # of a tensor that are compared
_names = map("memplan {}".format, itertools.count())


class _Saved(dict[str, Any]):
    """A saved tensor: its shape and type, and some of its values.

    raises: what is raised if another one of that shape and type has other values.
    """

    def __init__(self, tensor: Any, raises: Callable[[], Exception]) -> None:
        super().__init__(shape=tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self._version, self._values = version_of(tensor), _values_of(tensor)
        self._raises = raises

    def __ne__(self, other: object) -> bool:
        if super().__ne__(other) or not isinstance(other, _Saved):
            return True
        # What was changed in place since it was saved is not looked at.
        if self._version == other._version and self._values != other._values:
            raise self._raises()
        return False


@contextlib.contextmanager
def compared(raises: Callable[[], Exception]) -> Iterator[dict[str, str]]:
    """Within: a call of `torch.utils.checkpoint` with these keyword arguments raises
    what `raises` makes if its second call saves other values."""
    from torch.utils import checkpoint

    checks = getattr(checkpoint, "_allowed_determinism_checks_to_fns", None)
    if checks is None:  # torch has no such check
        yield {}
        return
    name = next(_names)
    checks[name] = lambda tensor: _Saved(tensor, raises)
    try:
        yield {"determinism_check": name}
    finally:
        del checks[name]


def _values_of(tensor: Any) -> int | None:
    """A hash of some of its values, evenly spread; None if they are not compared.
    Takes no memory of torch's."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    numbers = tensor.is_floating_point() or tensor.is_complex()
    if not numbers or tensor.is_conj() or tensor.is_neg():
        return None
    with torch.no_grad():
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor.detach()
        whole = (torch.int8, torch.int16, torch.int32, torch.int64)
        kind = whole[real.element_size().bit_length() - 1]
        values = real.view(kind).numpy()
    steps = [1] * values.ndim
    left = list(values.shape)
    while math.prod(left) > MOST_VALUES:
        widest = max(range(len(left)), key=left.__getitem__)
        steps[widest] *= 2
        left[widest] = -(-values.shape[widest] // steps[widest])
    return hash(values[tuple(slice(None, None, step) for step in steps)].tobytes())
