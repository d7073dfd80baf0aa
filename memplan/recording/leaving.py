"""Ways out of a program by which nothing after it runs: os._exit, and os.exec*."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

# What the other functions of `os` call in the end.
EXIT = "_exit"
WAYS = (EXIT, "execv", "execve")


@contextlib.contextmanager
def leaving_concluded(conclude: Callable[[bool], object]) -> Iterator[None]:
    """Call `conclude`, once, before this process leaves by one of WAYS: whether it
    goes on as another program.

    It prints to the streams that there are now. Forked children leave without it, as
    those of multiprocessing always do.
    """
    process = os.getpid()
    before = {name: getattr(os, name) for name in WAYS}
    ours = sys.stdout, sys.stderr
    left: list[str] = []

    def concluding(name: str) -> Callable[..., Any]:
        leave = before[name]

        @functools.wraps(leave)
        def leaving(*arguments: Any, **named: Any) -> Any:
            if os.getpid() == process and not left:
                left.append(name)
                theirs, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), ours
                # Whatever happens, the program leaves.
                with contextlib.suppress(Exception):
                    conclude(name != EXIT)
                sys.stdout, sys.stderr = theirs
            return leave(*arguments, **named)

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
