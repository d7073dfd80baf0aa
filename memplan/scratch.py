"""Temporary folders that go even where the process is told to end.

SIGTERM and SIGHUP end Python at once, and what `with` was to put away stays behind. In
here they are an exception, as Ctrl-C is, and end the process once all is put away.
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
    """A new folder with mode 0700, which goes at the end with all that is in it.

    Also where SIGTERM or SIGHUP ends the process, unless the program has handlers of
    its own for them, or this is not the main thread: only that one may set any.

    Raises EnvironmentUnfitError if there is no place for it.
    """
    with _ended_in_order():
        try:
            folder = tempfile.TemporaryDirectory(prefix=prefix)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"no temporary folder can be made ({error.strerror}); set TMPDIR"
            ) from error
        with folder as name:
            yield Path(name)


class _ToldToEnd(BaseException):
    """By a signal."""


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Signals that would end the process at once do so after the block was left."""
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) == 1:  # another one comes while all is put away already
            raise _ToldToEnd

    numbers = []
    if threading.current_thread() is threading.main_thread():
        numbers = [n for n in _NUMBERS if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    except _ToldToEnd:
        pass
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if told:
            signal.raise_signal(told[0])
