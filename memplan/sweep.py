"""Run many tasks in parallel, on all cores or on a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import re
import socket
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Protocol, TypeVar

from memplan.cores import cores
from memplan.errors import EnvironmentUnfitError, MemplanError, UsageError

_PATIENCE = 5.0  # seconds for a cluster to answer
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Finished = Generator[tuple[int, T], None, None]  # tasks by number, and their results


class Task(Protocol[T_co]):
    """A picklable task for another process."""

    def run(self) -> T_co:
        """Its result, also picklable."""


def sweep(
    tasks: Sequence[Task[T]],
    *,
    processes: int | None = None,
    address: str | None = None,
    progress: Callable[[int, T], None] | None = None,
) -> list[T]:
    """Results of all tasks, in order.

    processes: None for one per core; 1 runs the tasks in this process. address: of a
    Ray cluster to use instead ("auto" or host:port). progress: called with each
    finished task's number and result. A task's error ends the sweep. Raises UsageError
    if processes is below 1 or given with an address, and EnvironmentUnfitError without
    Ray or a cluster at the address.
    """
    if processes is not None and processes < 1:
        raise UsageError(f"{processes} processes: give at least 1")
    if address is not None and processes is not None:
        raise UsageError("give processes or a cluster's address, not both")
    count = min(processes or cores(), len(tasks))
    if address is not None:
        finished = _on_ray(tasks, address)
    elif count <= 1:
        finished = ((number, task.run()) for number, task in enumerate(tasks))
    else:
        finished = _on_processes(tasks, count)
    results: dict[int, T] = {}
    with contextlib.closing(finished):
        for number, found in finished:
            results[number] = found
            if progress is not None:
                progress(number, found)
    return [results[number] for number in range(len(tasks))]


def _on_processes(tasks: Sequence[Task[T]], count: int) -> _Finished[T]:
    # Fresh interpreters, because a fork copies locks that threads hold.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context)
    try:
        numbers = {pool.submit(task.run): i for i, task in enumerate(tasks)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _on_ray(tasks: Sequence[Task[T]], address: str) -> _Finished[T]:
    try:
        cluster: Any = importlib.import_module("ray")
    except ImportError:
        raise EnvironmentUnfitError(
            "Ray is not installed; install it with pip install 'memplan[ray]'"
        ) from None
    joined = not cluster.is_initialized()
    try:
        if joined:
            _reach(address)
            cluster.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"no Ray cluster answers at {address!r}: {error}"
        ) from None
    try:
        yield from _collected(cluster, tasks)
    except cluster.exceptions.RayError as error:  # a node has gone or lacks memplan
        raise EnvironmentUnfitError(
            f"the Ray cluster at {address!r} failed: {str(error).splitlines()[-1]}"
        ) from error
    finally:
        if joined:
            cluster.shutdown()


def _reach(address: str) -> None:
    """Raises OSError if nothing listens at host:port; Ray would wait for it."""
    match = re.fullmatch(r"(?:ray://)?(.+):(\d{1,5})", address)
    if match is not None:
        socket.create_connection((match[1], int(match[2])), _PATIENCE).close()


def _collected(cluster: Any, tasks: Sequence[Task[T]]) -> _Finished[T]:
    remote = cluster.remote(_attempt)
    waiting = {remote.remote(task): i for i, task in enumerate(tasks)}
    try:
        while waiting:
            done, _ = cluster.wait(list(waiting), num_returns=1)
            number = waiting.pop(done[0])
            found = cluster.get(done[0])
            if isinstance(found, MemplanError):
                raise found
            yield number, found
    finally:
        for left in waiting:
            cluster.cancel(left)


def _attempt(task: Task[T]) -> T | MemplanError:
    """The result or the error; Ray would wrap a raised error in its own."""
    try:
        return task.run()
    except MemplanError as error:
        return error
