"""Standard input, output and error, even if closed."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from memplan.errors import EnvironmentUnfitError, ReaderGoneError

_OUTPUTS = {1: "stdout", 2: "stderr"}


@contextlib.contextmanager
def standard_output() -> Iterator[IO[bytes]]:
    """Descriptor 1, whatever `sys.stdout` is."""
    if sys.__stdout__ is None:
        raise EnvironmentUnfitError("standard output is closed; name a file")
    try:
        with os.fdopen(os.dup(1), "wb") as stream:
            yield stream
    except BrokenPipeError:
        raise ReaderGoneError("the pipe at standard output is closed") from None
    except OSError as error:
        raise EnvironmentUnfitError(
            f"cannot write to standard output ({error.strerror}); name a file"
        ) from error


def open_missing_streams() -> None:
    """Open the null device for each closed standard stream.

    Otherwise the next opened file would get its descriptor, and what is printed.
    """
    for number, (name, mode) in enumerate(
        (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    ):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(null, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def private_streams() -> Iterator[tuple[IO[str], IO[str]]]:
    """Standard input and output, which the null device replaces for all others."""
    with os.fdopen(os.dup(0)) as source, os.fdopen(os.dup(1), "w") as sink:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        os.close(null)
        yield source, sink


def unnamed_file() -> IO[bytes]:
    """A file to be a child's standard error."""
    return tempfile.TemporaryFile()


@contextlib.contextmanager
def lent_streams() -> Iterator[None]:
    """Let a program replace or close standard output and error, and restore them.

    The program's exit handlers see its own streams again.
    """
    ours = present_streams()
    try:
        yield
    finally:
        for number, stream in ours.items():
            _take_back(number, stream)


def present_streams() -> dict[int, Any]:
    """The current standard output and error, by descriptor."""
    return {number: getattr(sys, name, None) for number, name in _OUTPUTS.items()}


@contextlib.contextmanager
def streams_again(ours: dict[int, Any]) -> Iterator[None]:
    """Use the streams `ours` as standard output and error within the block."""
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

    atexit.register(give_back)  # registered last, so it runs first


def _open(number: int, ours: Any) -> Any:
    """`ours`, or a new stream if the program closed or detached it."""
    try:
        shut = getattr(ours, "closed", False)
    except ValueError:  # detached
        shut = True
    # Either leaves the descriptor open.
    return _writing(number) if shut else ours


def _writing(number: int) -> IO[str]:
    """A stream to the descriptor, or to the null device if it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return open(os.devnull, "w")
    return open(number, "w", errors="backslashreplace", closefd=False)


def silence(stream: IO[str]) -> None:
    """Discard everything printed to `stream`, even when Python exits."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
