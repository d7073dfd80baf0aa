"""One line that tells how far a search has come: on a terminal, and nowhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from memplan.cli import show
from memplan.solving.options import Progress
from memplan.units import format_bytes, format_gap


@contextlib.contextmanager
def progress_line(method: str) -> Iterator[Callable[[Progress], None] | None]:
    """What to call with each Progress; None where standard error is no terminal.

    The line is gone when the context ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status(f"{method} ...") as status:

        def update(progress: Progress) -> None:
            status.update(f"{method}: {describe(progress)}")

        yield update


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None] | None]:
    """What to call with how far it is; None where standard error is no terminal.

    The line is gone when the context ends.
    """
    with saying_if_interrupted():
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        with console.status(f"{what} ...") as status:
            yield lambda how_far: status.update(f"{what}: {how_far}")


@contextlib.contextmanager
def saying_if_interrupted() -> Iterator[None]:
    """Ctrl-C ends what has no result yet, and nobody should wait for one."""
    try:
        yield
    except KeyboardInterrupt:
        show.complaint("interrupted, so there is no result")
        raise


def describe(progress: Progress) -> str:
    """Best peak, bound, gap, what was tried, and the time, in one line."""
    bound = progress.lower_bound
    parts = [f"lower bound {format_bytes(bound)}"]
    if progress.peak is not None:
        parts.insert(0, f"peak {format_bytes(progress.peak)}")
        if bound:
            parts.append(f"gap {format_gap((progress.peak - bound) / bound)}")
    parts.append(f"{progress.nodes:,} tried")
    return ", ".join([*parts, f"{progress.seconds:.1f} s; Ctrl-C keeps the best"])
