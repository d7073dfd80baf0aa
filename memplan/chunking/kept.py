"""A model's buffers and inputs, put back after runs that write to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Kept:
    """Copies of tensors, to set right what a run has written to.

    What nobody writes to is compared by torch's own count of writes, and not touched.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        import torch

        self._held = [
            (tensor, tensor.detach().clone())
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
        ]
        self._writes = [tensor._version for tensor, _ in self._held]

    def restore(self) -> None:
        """Write back what has changed since these were kept, or restored."""
        import torch

        with torch.no_grad():
            for i, (tensor, copy) in enumerate(self._held):
                if tensor._version != self._writes[i]:
                    tensor.copy_(copy)
                    self._writes[i] = tensor._version
