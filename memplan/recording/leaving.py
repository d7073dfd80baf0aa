"""Ways out of a program by which nothing after it runs: os._exit, and os.exec*."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from memplan.streams import present_streams, streams_again

# What the other functions of `os` call in the end.
EXIT = "_exit"
WAYS = (EXIT, "execv", "execve")


@contextlib.contextmanager
def leaving_concluded(conclude: Callable[[bool], object]) -> Iterator[None]:
    """Call `conclude`, once, before this process leaves by one of WAYS: whether it
    goes on as another program.

    It prints to the streams that there are now, also if the program closed them.
    Forked children leave without it, as those of multiprocessing always do.
    """
    process = os.getpid()
    before = {name: getattr(os, name) for name in WAYS}
    ours = present_streams()
    left: list[str] = []

    def concluding(name: str) -> Callable[..., Any]:
        leave = before[name]

        @functools.wraps(leave)
        def leaving(*arguments: Any, **named: Any) -> Any:
            here = os.getpid() == process and not left
            if here and (name == EXIT or _runs(*arguments[:1])):
                left.append(name)
                # Whatever happens, Ctrl-C included, the program leaves.
                with contextlib.suppress(BaseException), streams_again(ours):
                    conclude(name != EXIT)
            return leave(*arguments, **named)

        # Where pickle finds it: pools are told to run os._exit.
        leaving.__module__ = os.__name__
        return leaving

    wrapped = {name: concluding(name) for name in WAYS}
    for name, leave in wrapped.items():
        setattr(os, name, leave)
    try:
        yield
    finally:
        for name, leave in wrapped.items():
            if getattr(os, name, None) is leave:
                setattr(os, name, before[name])


def _runs(file: Any = None) -> bool:
    """Whether exec will find a program there: `execvp` tries folder after folder."""
    if isinstance(file, int):
        return True
    try:
        return os.path.isfile(file) and os.access(file, os.X_OK)
    except (TypeError, ValueError):
        return False
