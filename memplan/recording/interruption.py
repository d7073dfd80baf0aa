"""Parts of a program that are not to be planned (profile-guided memory optimization,
section 4.3).

What is asked for between `interrupt` and `resume`, by any thread, is served by torch's
own allocator: it is neither recorded nor matched with a plan. Without a recording or a
plan in force both do nothing, so that a program can keep them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from memplan.errors import UsageError


def interrupt() -> None:
    """Leave what follows unplanned, until `resume`; calls nest."""
    from memplan.native import _alloc

    _alloc.interrupt()


def resume() -> None:
    """End the latest `interrupt`. Raises UsageError if there was none."""
    from memplan.native import _alloc

    if not _alloc.resume():
        raise UsageError("memplan.resume() without a memplan.interrupt() before it")


@contextlib.contextmanager
def unplanned() -> Iterator[None]:
    """Leave what the block asks for unplanned.

    `with memplan.unplanned(): evaluate()`
    """
    interrupt()
    try:
        yield
    finally:
        resume()
