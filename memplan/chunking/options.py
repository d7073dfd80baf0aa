"""How a model is to be chunked, and the error where it cannot be so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memplan.chunking.choice import Effort
from memplan.errors import NoPlanError

MAX_SLOWDOWN = 1.10


class BudgetError(NoPlanError):
    """No plan within the budget, or none that is fast enough.

    floor: bytes of the lowest peak found. line: `file:line` of the operator that
    limits it. closest: the module chunked as near to the budget as was found.
    """

    def __init__(self, message: str, floor: int, line: str, closest: Any) -> None:
        self.floor, self.line, self.closest = floor, line, closest
        super().__init__(message, peak=floor)


@dataclass(frozen=True)
class ChunkOptions:
    """How a model is chunked.

    max_slowdown: the largest ratio of its time, chunked over as it was, that is
    accepted; None for any. effort: how far the search looks. time_limit: seconds that
    all of the search may take; None for as long as effort says. progress: told, in a
    few words, what is going on. other_sizes: whether the module, given inputs of other
    sizes than it was chunked for, prepares itself for them.
    """

    max_slowdown: float | None = MAX_SLOWDOWN
    effort: Effort = field(default_factory=Effort)
    time_limit: float | None = None
    progress: Callable[[str], None] = lambda _: None
    other_sizes: bool = False
