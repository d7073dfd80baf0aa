"""Placements: buffers, where they lie, and the requests that they serve.

A Workload is what is to be placed; a Placement is a workload with its offsets. A plan
is made of placements: of the hot steps, the warm-up before them, and other kinds of
step (see `memplan.core.plan`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.core.problem import Problem

UNPLANNED = -1  # in `Requests.buffer`: the default allocator serves this request

Entry = TypeVar("Entry", bound=np.generic)
Self = TypeVar("Self", bound="Placement")


@dataclass(frozen=True, eq=False)
class Requests:
    """Every request of some successive steps, in the order they are made.

    starts: index of each step's first request, ascending, the first 0.
    size: exact bytes asked for, int64, shape (m,).
    buffer: index into the problem's buffers, or UNPLANNED, int64, shape (m,).
    """

    starts: tuple[int, ...]
    size: Int64Array
    buffer: Int64Array

    @classmethod
    def serving(
        cls, starts: tuple[int, ...], size: Int64Array, rows: Int64Array
    ) -> Requests:
        """Requests of which those in `rows` are served by the buffers 0, 1, ...

        The default allocator serves all others. rows: one per buffer, shape (n,).
        """
        buffer = np.full(len(size), UNPLANNED, dtype=np.int64)
        buffer[rows] = np.arange(len(rows))
        return cls(starts, size, buffer)

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def planned(self) -> BoolArray:
        """Which requests a buffer serves, shape (m,)."""
        planned: BoolArray = self.buffer != UNPLANNED
        return planned

    def by_request(
        self, values: npt.NDArray[Entry], otherwise: object
    ) -> npt.NDArray[Entry]:
        """The value of each request's buffer, shape (m,); `otherwise` if unplanned.

        values: one per buffer, shape (n,).
        """
        # UNPLANNED is -1, and finds the entry appended.
        found: npt.NDArray[Entry] = np.append(values, values.dtype.type(otherwise))[
            self.buffer
        ]
        return found

    def by_buffer(self) -> Int64Array:
        """The request that each buffer serves, shape (n,), where each serves one."""
        rows = np.flatnonzero(self.planned)
        return rows[np.argsort(self.buffer[rows], kind="stable")]

    def keeping(self, members: Int64Array, count: int) -> Requests:
        """The same requests where, of `count` buffers, only `members` are left.

        members: indices of buffers, ascending; numbered by their place in it.
        """
        renumbered = np.full(count, UNPLANNED, dtype=np.int64)
        renumbered[members] = np.arange(len(members))
        return replace(self, buffer=self.by_request(renumbered, UNPLANNED))


@dataclass(frozen=True, eq=False)
class Workload:
    """What a program needs in some of its steps: buffers, and the requests for them."""

    problem: Problem
    requests: Requests


@dataclass(frozen=True, eq=False)
class Placement:
    """Offsets in bytes for every buffer of `problem`, int64, shape (n,).

    requests: what the buffers serve; None where a bare problem was solved.
    """

    problem: Problem
    offsets: Int64Array
    requests: Requests | None = None

    @property
    def peak(self) -> int:
        """Bytes up to the highest one that a buffer takes up."""
        return self.problem.peak(self.offsets)

    def keeping(self: Self, members: Int64Array) -> Self:
        """The placement of the buffers `members`, ascending; the others unplanned."""
        changes: dict[str, Any] = {
            "problem": self.problem.take(members),
            "offsets": self.offsets[members],
        }
        if self.requests is not None:
            changes["requests"] = self.requests.keeping(members, len(self.problem))
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Warmup(Placement):
    """The steps before the hot ones, placed so that the hot plan can take over.

    Its clock is linear, from the start of the recording; `problem.length` is None
    and `ticks` is where the first hot step begins.
    """

    requests: Requests = field()  # never None here
    ticks: int


@dataclass(frozen=True, eq=False)
class StepKind(Placement):
    """A step of another kind than the hot ones: a short last batch, an evaluation.

    Its clock is linear and begins with the step; buffers may outlive the step by one.
    seen: how many steps of the recording were of this kind.
    """

    requests: Requests = field()  # never None here
    seen: int = 1
