"""Installing the allocator shim before torch's own CPU allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError

OLDEST = (2, 6)  # the first release whose allocator interface was checked


def require_torch(purpose: str) -> Any:
    """The torch module. Raises EnvironmentUnfitError saying how to get it."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{purpose} needs PyTorch: pip install 'memplan[torch]' ({error})"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise EnvironmentUnfitError(
            f"{purpose} needs PyTorch 2.6 or later, and this is {torch.__version__}"
        )
    return torch


def install(purpose: str) -> None:
    """Install the shim before torch's CPU allocator; it passes requests through.

    Raises EnvironmentUnfitError if torch is missing or its binary interface is unknown.
    """
    from memplan.native import _alloc

    torch = require_torch(purpose)
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    fault = _alloc.install(str(library))
    if fault:
        raise EnvironmentUnfitError(
            f"torch {torch.__version__} has a CPU allocator that memplan does not "
            f"know: {fault}; nothing was changed"
        )
