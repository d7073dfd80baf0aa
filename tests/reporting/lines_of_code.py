"""Traces made of the lines that ask for memory, and what can happen to such lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Trace, TraceInfo
from tests.programs import events_of


@dataclass(frozen=True)
class Asks:
    """A line of a function that asks for blocks of `size` bytes and keeps them.

    place: as in "train.py:3 step". keeps: how many stay; with 0, one is freed at once.
    """

    place: str
    module: str
    operator: str
    size: int
    keeps: int = 1

    @property
    def file(self) -> str:
        return self.place.partition(":")[0]

    @property
    def line(self) -> int:
        return int(self.place.partition(":")[2].split()[0])

    @property
    def function(self) -> str:
        return self.place.split()[1]

    def at(self, file: str = "", line: int = 0, function: str = "") -> Asks:
        """The same elsewhere."""
        file, line = file or self.file, line or self.line
        place = f"{file}:{line} {function or self.function}"
        return replace(self, place=place)


Code = tuple[Asks, ...]


def running(code: Iterable[Asks], folder: str = "/main/") -> Trace:
    """What is recorded of code in a folder; its peak is at the end."""
    stacks = StackTable()
    rows: list[tuple[int, int, int, int]] = []
    for asks in code:
        frame = Frame(folder + asks.file, asks.line, asks.function)
        origin = Origin(asks.module, asks.operator, Phase.FORWARD)
        stack = stacks.intern((frame,), origin)
        for _ in range(max(asks.keeps, 1)):
            block = 1 + len(rows), asks.size
            rows.append((Action.ALLOC, *block, stack))
            if not asks.keeps:
                rows.append((Action.FREE_COMPLETED, *block, -1))
    events = events_of("action address size stack", rows)
    return Trace(events, stacks, TraceInfo(stacks="site"))


def each(code: Code, change: Callable[[Asks], Asks]) -> Code:
    """The code with every line changed."""
    return tuple(map(change, code))


def shifted(code: Code, file: str, after: int, by: int = 1) -> Code:
    """The code with the lines of a file behind line `after` moved down."""
    return each(
        code,
        lambda asks: (
            asks.at(line=asks.line + by)
            if asks.file == file and asks.line > after
            else asks
        ),
    )


# A model, its training step, and as a rule more lines than one of a kind.
MODEL: Code = (
    Asks("model.py:5 __init__", "fc1", "empty", 40_000),
    Asks("model.py:6 __init__", "fc2", "empty", 20_000),
    Asks("model.py:9 forward", "fc1", "linear", 8000),
    Asks("model.py:10 forward", "", "relu", 8000),
    Asks("model.py:11 forward", "fc2", "linear", 4000),
    Asks("model.py:12 forward", "", "relu", 4000),
)
TRAINING: Code = (
    Asks("train.py:9 step", "", "mean", 4, keeps=0),
    Asks("train.py:3 batch", "", "randn", 6400),
    Asks("train.py:8 step", "fc1", "zeros_like", 40_000),
    Asks("train.py:8 step", "fc2", "zeros_like", 20_000),
)
BASE = MODEL + TRAINING
