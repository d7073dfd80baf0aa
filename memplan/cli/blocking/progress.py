"""One line on how far a search or a simulation is: on a terminal, and nowhere else."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence

from memplan.blocking.design.task import Task
from memplan.blocking.search.incumbent import SearchProgress
from memplan.blocking.search.result import Result
from memplan.cli.blocking import report
from memplan.cli.progress import saying_if_interrupted, working
from memplan.sweep import sweep
from memplan.units import format_seconds


@contextlib.contextmanager
def searching(what: str) -> Iterator[Callable[[SearchProgress], None] | None]:
    """What to call with each SearchProgress, likewise."""
    with working(what) as told:
        yield None if told is None else lambda progress: told(describe(progress))


@contextlib.contextmanager
def sweeping(what: str, tasks: int) -> Iterator[Callable[[int, Result], None] | None]:
    """What to call with a task's number and result as it ends: a bar, likewise."""
    with saying_if_interrupted():
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TimeElapsedColumn,
        )

        columns = (what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True, highlight=False)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=tasks)
            yield lambda number, result: bar.advance(task)


def swept(
    what: str, tasks: Sequence[Task], threads: int | None, ray: str | None
) -> list[Result]:
    """The results of all tasks, on a Ray cluster if its address is given."""
    with sweeping(what, len(tasks)) as ended:
        processes = None if ray else threads
        return sweep(tasks, processes=processes, address=ray, progress=ended)


def describe(progress: SearchProgress) -> str:
    """The best energy, what was tried, and the time, in one line."""
    parts = [] if math.isinf(progress.energy) else [report.energy(progress.energy)]
    parts.append(f"{report.amount(progress.evaluated)} tried")
    parts.append(format_seconds(progress.seconds))
    return ", ".join(parts) + "; Ctrl-C keeps the best"
