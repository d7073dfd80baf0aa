"""Torch itself: its release, its CPU allocator's shim, its fake tensors."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

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


def watch_fake_modes(
    listener: Callable[[str], None], also: str = ""
) -> contextlib.AbstractContextManager[Any]:
    """Call `listener` with file and line wherever the program makes a FakeTensorMode.

    Modes that PyTorch makes itself, as torch.compile does, do not count, nor those of
    files whose path begins with `also`.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    folder = f"{Path(torch.__file__).parent}{os.sep}"
    begin = FakeTensorMode.__init__

    @functools.wraps(begin)
    def made(mode: Any, *arguments: Any, **options: Any) -> None:
        caller = sys._getframe(1)
        file = caller.f_code.co_filename
        if not file.startswith((folder, also or folder)):
            listener(f"{file}:{caller.f_lineno}")
        begin(mode, *arguments, **options)

    return mock.patch.object(FakeTensorMode, "__init__", made)
