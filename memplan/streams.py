"""Standard input, output and error, open or not."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO

from memplan.errors import EnvironmentUnfitError, ReaderGoneError


@contextlib.contextmanager
def standard_output() -> Iterator[IO[bytes]]:
    """Descriptor 1, whatever `sys.stdout` stands for meanwhile."""
    if sys.__stdout__ is None:
        raise EnvironmentUnfitError("standard output is closed; name a file")
    try:
        with os.fdopen(os.dup(1), "wb") as stream:
            yield stream
    except BrokenPipeError:
        raise ReaderGoneError("nobody reads standard output any more") from None
    except OSError as error:
        raise EnvironmentUnfitError(
            f"standard output cannot be written ({error.strerror}); name a file"
        ) from error


def open_missing_streams() -> None:
    """The null device where standard input, output or error is closed.

    Else the next file that is opened would get the descriptor's number, and with it
    what is printed.
    """
    for number, (name, mode) in enumerate(
        (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    ):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest number there is
            os.set_inheritable(null, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def silence(stream: IO[str]) -> None:
    """Nothing printed to `stream` arrives anywhere, not even when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
