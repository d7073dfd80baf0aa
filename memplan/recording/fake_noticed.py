"""Whether a recorded program uses fake tensors of its own, which hold no memory."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any


class FakeNoticed:
    """Watches for the program making a FakeTensorMode, from `start` to `stop`.

    Those that PyTorch makes itself, as torch.compile does, are no matter.
    """

    def __init__(self) -> None:
        self._where = ""
        self._original: Any = None

    def start(self) -> None:
        """Look on wherever a mode is made."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        folder = f"{Path(torch.__file__).parent}{os.sep}"
        made = FakeTensorMode.__init__

        @functools.wraps(made)
        def noticing(mode: Any, *arguments: Any, **options: Any) -> None:
            code, line = _caller()
            if not self._where and not code.startswith(folder):
                self._where = f"{code}:{line}"
            made(mode, *arguments, **options)

        self._original = made
        FakeTensorMode.__init__ = noticing

    def stop(self) -> None:
        """Leave it as it was; harmless when nothing was started."""
        if self._original is not None:
            from torch._subclasses.fake_tensor import FakeTensorMode

            FakeTensorMode.__init__ = self._original
            self._original = None

    def notes(self) -> list[str]:
        """What a user should know of it; nothing where there is none."""
        if not self._where:
            return []
        return [
            f"the program uses FakeTensorMode ({self._where}): tensors made under it "
            "hold no memory, and are not in the trace; --device fake records what they "
            "would hold"
        ]


def _caller() -> tuple[str, int]:
    """The file and line that made the mode."""
    frame = sys._getframe(2)
    return frame.f_code.co_filename, frame.f_lineno
