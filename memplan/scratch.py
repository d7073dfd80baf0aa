"""Temporary folders that are removed even on SIGTERM and SIGHUP.

These signals end Python at once and skip `with`. Here they raise an exception, as
Ctrl-C does, and end the process after the cleanup.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from memplan.errors import EnvironmentUnfitError

_NUMBERS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def scratch_folder(prefix: str = "memplan-") -> Iterator[Path]:
    """A new folder with mode 0700, removed with its contents at the end.

    Also if SIGTERM or SIGHUP ends the process, unless the program handles them itself
    or this is not the main thread, which alone may set handlers.

    Raises EnvironmentUnfitError if it cannot be made.
    """
    with _deferred_signals():
        try:
            folder = tempfile.TemporaryDirectory(prefix=prefix)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"cannot make a temporary folder ({error.strerror}); set TMPDIR"
            ) from error
        with folder as name:
            yield Path(name)


class _Terminated(BaseException):
    """Raised by a signal."""


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer signals that would end the process at once to the end of the block."""
    signals: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:  # the next ones arrive during the cleanup
            raise _Terminated

    numbers = []
    if threading.current_thread() is threading.main_thread():
        numbers = [n for n in _NUMBERS if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    except _Terminated:
        pass
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if signals:
            signal.raise_signal(signals[0])
