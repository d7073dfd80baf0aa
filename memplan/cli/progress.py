"""A line that shows the progress of a search, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from memplan.cli import show
from memplan.solving.options import Progress
from memplan.units import format_bytes, format_gap


@contextlib.contextmanager
def progress_line(method: str) -> Iterator[Callable[[Progress], None]]:
    """A callback for each Progress, which shows nothing where standard error is no
    terminal.

    The line disappears when the context ends.
    """
    with _status(method) as update:
        yield lambda progress: update(describe(progress))


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """The same with a callback for texts; Ctrl-C prints that there is no result."""
    try:
        with _status(what) as update:
            yield update
    except KeyboardInterrupt:
        show.complaint("interrupted; there is no result")
        raise


@contextlib.contextmanager
def _status(what: str) -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status(f"{what} ...") as status:
        yield lambda text: status.update(f"{what}: {text}")


def describe(progress: Progress) -> str:
    """Best peak, bound, gap, nodes and time, in one line."""
    bound = progress.lower_bound
    parts = [f"lower bound {format_bytes(bound)}"]
    if progress.peak is not None:
        parts.insert(0, f"peak {format_bytes(progress.peak)}")
        if bound:
            parts.append(f"gap {format_gap((progress.peak - bound) / bound)}")
    parts.append(f"{progress.nodes:,} tried")
    return ", ".join([*parts, f"{progress.seconds:.1f} s; Ctrl-C keeps the best"])
