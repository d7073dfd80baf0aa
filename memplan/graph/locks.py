"""Locks that a child process finds open after a fork."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A reentrant lock for `with`; who held it does not exist in a child."""

    def __init__(self) -> None:
        self.reset()
        _locks.add(self)

    def reset(self) -> None:
        """Open it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.reset()


os.register_at_fork(after_in_child=_after_fork)
