"""Standard input, output and error, open or not."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from memplan.errors import EnvironmentUnfitError, ReaderGoneError

_OUTPUTS = {1: "stdout", 2: "stderr"}


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


@contextlib.contextmanager
def lent_streams() -> Iterator[None]:
    """Standard output and error for a program to replace or close, as many do to log.

    Afterwards they are what they were, so that what is said next is heard, and not in
    the program's log; its exit handlers find its own again.
    """
    ours = present_streams()
    try:
        yield
    finally:
        for number, stream in ours.items():
            _take_back(number, stream)


def present_streams() -> dict[int, Any]:
    """Standard output and error by descriptor, as they are now."""
    return {number: getattr(sys, name, None) for number, name in _OUTPUTS.items()}


@contextlib.contextmanager
def streams_again(ours: dict[int, Any]) -> Iterator[None]:
    """Standard output and error as they were once, within the block."""
    theirs = present_streams()
    instead = {number: _open(number, stream) for number, stream in ours.items()}
    for number, stream in instead.items():
        setattr(sys, _OUTPUTS[number], stream)
    try:
        yield
    finally:
        for number, stream in theirs.items():
            setattr(sys, _OUTPUTS[number], stream)
            if instead[number] is not ours[number]:
                with contextlib.suppress(OSError):
                    instead[number].close()


def _take_back(number: int, ours: Any) -> None:
    name = _OUTPUTS[number]
    theirs = getattr(sys, name, None)
    instead = _open(number, ours)
    if theirs is instead:
        return
    setattr(sys, name, instead)

    def give_back() -> None:
        if getattr(sys, name, None) is instead:
            setattr(sys, name, theirs)
        if instead is not ours:
            with contextlib.suppress(OSError):
                instead.close()

    atexit.register(give_back)  # the last to be registered, and the first to run


def _open(number: int, ours: Any) -> Any:
    """`ours`, or, if the program closed it or took its buffer, another like it."""
    try:
        shut = getattr(ours, "closed", False)
    except ValueError:  # detached
        shut = True
    # Either leaves the descriptor open.
    return _writing(number) if shut else ours


def _writing(number: int) -> IO[str]:
    """A stream to the descriptor, or to nowhere if it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return open(os.devnull, "w")
    return open(number, "w", errors="backslashreplace", closefd=False)


def silence(stream: IO[str]) -> None:
    """Nothing printed to `stream` arrives anywhere, not even when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
