"""A contender in a process of its own, which is made ready once and then asked."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from bench.runner import BenchError


class Worker:
    """A process in which `make(*arguments)` gives what answers each question.

    environment: what it has beside this process's, before it imports anything.
    """

    def __init__(
        self,
        make: Callable[..., Callable[[], Any]],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, make, arguments), daemon=True
        )
        before = dict(os.environ)
        os.environ.update(environment or {})
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def answer(self, seconds: float) -> Any:
        """The next answer; the first says only that it is ready. Raises BenchError
        where it fails or takes longer than `seconds`."""
        try:
            self._pipe.send("next")
            if not self._pipe.poll(seconds):
                raise BenchError(f"no answer within {seconds:g} s")
            answer, reason = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            raise BenchError("its process ended") from None
        if reason:
            raise BenchError(reason)
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _serve(
    pipe: Connection, make: Callable[..., Callable[[], Any]], arguments: Any
) -> None:
    """Answer until the other end closes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # exporters and compilers print
    warnings.simplefilter("ignore")
    try:
        pipe.recv()
        answer = make(*arguments)
        pipe.send((None, ""))
        while True:
            pipe.recv()
            pipe.send((answer(), ""))
    except (EOFError, KeyboardInterrupt):
        return
    except ModuleNotFoundError as error:
        pipe.send((None, f"{error.name} is not installed"))
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        pipe.send((None, text[:300]))
