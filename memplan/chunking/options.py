"""The budget, search effort and other options, and the error if a budget fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from memplan.errors import NoPlanError, UsageError
from memplan.units import format_bytes, parse_memory

if TYPE_CHECKING:
    from memplan.chunking.module import Chunked

MAX_SLOWDOWN = 1.10


@dataclass(frozen=True)
class Effort:
    """How far the search looks.

    width: sequences kept in the beam. wanted: how many plans within the budget end the
    search. reach: operators before and after the peak. built: candidates built of those
    weighed. seconds: time limit of one search. finest: the most chunks of a loop.
    """

    width: int = 3
    wanted: int = 4
    reach: int = 60
    built: int = 10
    seconds: float = 60.0
    finest: int = 256


class BudgetError(NoPlanError):
    """No plan fits the budget, or none that does is fast enough.

    floor: bytes of the lowest peak found. line: `file:line` of the operator that
    limits it. closest: the chunked module that comes nearest to the budget.
    """

    def __init__(self, message: str, floor: int, line: str, closest: Chunked) -> None:
        self.floor, self.line, self.closest = floor, line, closest
        super().__init__(message, peak=floor)


def check_slowdown(ratio: float | None) -> None:
    """Raise UsageError for a limit of time that is not above 0, or no number."""
    if ratio is not None and not ratio > 0:
        raise UsageError(f"max_slowdown is a ratio above 0, not {ratio}")


@dataclass(frozen=True)
class ChunkOptions:
    """Options of chunking.

    max_slowdown: the largest accepted ratio of chunked to original time; None for any.
    effort: how far the search looks. time_limit: seconds for the whole search; None to
    let effort decide. progress: called with a short text at each stage. other_sizes:
    whether the module prepares itself for inputs of other sizes
    when it first meets them.
    """

    max_slowdown: float | None = MAX_SLOWDOWN
    effort: Effort = field(default_factory=Effort)
    time_limit: float | None = None
    progress: Callable[[str], None] = lambda _: None
    other_sizes: bool = True

    def __post_init__(self) -> None:
        check_slowdown(self.max_slowdown)

    @property
    def enough(self) -> float:
        """The largest accepted ratio; infinite if there is none."""
        return math.inf if self.max_slowdown is None else self.max_slowdown


@dataclass(frozen=True)
class Budget:
    """Bytes, a share of the model's present peak, or the least possible."""

    bytes: int | None = None
    share: Fraction | None = None
    least: bool = False

    def bytes_of(self, before: int) -> int:
        """The budget in bytes if the present peak is `before`; 0 for the least."""
        if self.bytes is not None:
            return self.bytes
        return int(before * self.share) if self.share is not None else 0


def parse_budget(text: str | int) -> Budget:
    """A budget as in "512MiB", "20%" or "min"; an int is bytes.

    Raises UsageError for anything else, and for budgets of 0.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text <= 0:
            raise UsageError(f"a budget must be more than 0 bytes, not {text}")
        return Budget(bytes=text)
    if not isinstance(text, str):
        raise UsageError(f"a budget must be like 512MiB, 20% or min, not {text!r}")
    if text == "min":
        return Budget(least=True)
    if text.endswith("%"):
        try:
            share = Fraction(text[:-1]) / 100
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1:
            raise UsageError(
                f"a budget's share must be above 0% and at most 100%, not {text!r}"
            )
        return Budget(share=share)
    try:
        size = parse_memory(text)
    except UsageError as error:
        raise UsageError(
            f"a budget is a size, a share such as 25%, or min: {error}"
        ) from error
    if size <= 0:
        raise UsageError(f"a budget must be more than 0 bytes, not {text!r}")
    return Budget(bytes=size)


def too_slow(module: Chunked, most: float, fits: str, instead: str) -> BudgetError:
    """The error for a module that takes more than `most` times as long.

    fits: the budget that it fits. instead: an alternative to a higher `most`.
    """
    plan = module.memplan
    return BudgetError(
        f"{fits}, but takes {plan.slowdown:.2f} times as long, above {most:.2f}; raise "
        f"--max-slowdown (max_slowdown in ChunkOptions) or {instead}",
        plan.measured_bytes_after,
        plan.regions[0]["line"] if plan.regions else "",
        module,
    )


def too_large(
    nearest: Chunked,
    limit: int,
    before: int,
    rejections: list[str],
    errors: Mapping[str, int],
    results: int = 0,
) -> BudgetError:
    """The error if no plan fits `limit` bytes.

    nearest: the module that needs least. before: bytes of the unchanged model.
    rejections: why modules were rejected that might have fitted. errors: how many
    regions each internal error dropped. results: bytes of what the model returns.
    """
    plan = nearest.memplan
    floor, line = plan.measured_bytes_after, plan.peak_after.get("line", "")
    where = f", at {line}" if line else ""
    if whole := plan.left_alone.get(""):
        which = "no part" if plan.reason.startswith("no part") else "only parts"
        where += f" ({which} of it can be exported: {whole})"
    if rejections:
        where += f" ({len(rejections)} plans were rejected: {rejections[-1]})"
    if errors:
        most = max(errors, key=lambda error: errors[error])
        count = sum(errors.values())
        where += (
            f" (internal errors dropped {count} regions, as in {most}; report them)"
        )
    if results > limit:
        where += f" (the results alone take {format_bytes(results)})"
    if floor >= before:
        found = f"none found needs less than the {format_bytes(before)} of the model"
        floor = before
    else:
        found = f"the lowest found is {format_bytes(floor)}"
    return BudgetError(
        f"no plan found within {format_bytes(limit)}: {found}{where}; raise the budget "
        "at least to that",
        floor,
        line,
        nearest,
    )
