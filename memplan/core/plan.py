"""A Plan: placements, how good they are, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.core.recompute import Recomputation
from memplan.text import facts_html
from memplan.units import format_bytes, format_gap

UNMARKED = "sequence"  # in `Program.marks`
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


@dataclass(frozen=True)
class Program:
    """What was recorded, so that `apply` can tell whether it runs the same thing.

    script: file name or module name; sha256: of the script's source, hex, or "".
    marks: what cuts its steps ("explicit", "optimizer", "forward", "none"), or UNMARKED
        where its loop was found in the sequence of its requests.
    """

    script: str = ""
    sha256: str = ""
    torch: str = ""
    threads: int = 0
    marks: str = "none"


@dataclass(frozen=True)
class RunStats:
    """How a run went, and under what conditions; 0 where that is not known.

    Of steady steps: mean page faults, median seconds, mean seconds of CPU time of all
    threads. steps: boundaries seen; load: programs that ran or waited, at the end.
    """

    peak_rss_bytes: int = 0
    page_faults_per_step: float = 0.0
    step_seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    load: float = 0.0


@dataclass(frozen=True)
class DeviceRun:
    """What a recorded run took of a GPU, by torch's allocator; 0 where it is not known.

    Bytes at most; mallocs, frees: calls of cudaMalloc and cudaFree. planned_bytes: what
    it would have reserved under the plan, by the rules of torch's allocator;
    expandable_bytes: with expandable_segments instead of a plan.
    """

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    mallocs: int = 0
    frees: int = 0
    planned_bytes: int = 0
    expandable_bytes: int = 0


@dataclass(frozen=True)
class Source:
    """Where the problem came from: file name, SHA-256 (hex), the step asked for."""

    name: str = ""
    sha256: str = ""
    step: str = "hot"


@dataclass(frozen=True)
class Stated:
    """What a plan file says of its own contents, for `verify` to hold against them.

    peak: bytes; fingerprint: of the problem, hex (see `Problem.fingerprint`).
    """

    peak: int
    fingerprint: str


@dataclass(frozen=True)
class Provenance:
    """Where a plan comes from: how it was solved, and what was recorded.

    seconds: how long solving took; not written to the file, whose bytes repeat.
    note: how it was found, for people; not written to the file.
    """

    method: str
    seed: int = 0
    seconds: float = 0.0
    note: str = ""
    device: str = "cpu"
    source: Source = field(default_factory=Source)
    program: Program = field(default_factory=Program)
    recorded: RunStats = field(default_factory=RunStats)
    recorded_device: DeviceRun = field(default_factory=DeviceRun)


@dataclass(frozen=True, eq=False)
class Plan:
    """The placement of the hot steps, and all that goes with it.

    lower_bound: bytes no plan for the hot steps can do with less than.
    proved_optimal: their peak is known to be least, by the bound or by a search.
    warmup: the steps before them, in the same arena.
    kinds: steps that may stand in place of a hot one, in the same arena.
    elastic: requests of the hot steps are told by their place in the step, and may be
        for fewer bytes than planned.
    lifespan_bytes: of CUDA memory, where steps are of many sizes or in no order, the
        arena's bytes where a block goes wherever there is room, by how long it lives;
        0: it goes to its offset.
    lanes: 0 where the program's requests are one sequence, whatever threads make them;
        else each thread that marks steps has a sequence of its own, and at most so many
        threads an arena each, a lane, at a time. There is no warm-up then.
    recompute: what is computed again so that the program fits a budget, if that is
        planned; the offsets are those of the program that does so.
    stated: what the file says of itself, where the plan was read from one.
    """

    hot: Placement
    provenance: Provenance
    lower_bound: int
    proved_optimal: bool = False
    warmup: Warmup | None = None
    kinds: tuple[StepKind, ...] = ()
    elastic: bool = False
    lifespan_bytes: int = 0
    lanes: int = 0
    recompute: Recomputation | None = None
    stated: Stated | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        offsets: Int64Array,
        made: Provenance | str,
        *,
        proved_optimal: bool = False,
        bound: int = 0,
    ) -> Plan:
        """A Plan with its lower bound: the problem's own, or `bound` if higher.

        made: where it comes from, or only the method's name.
        """
        hot = Placement(problem, offsets)
        low = max(bound, lower_bound(problem))
        proved = proved_optimal or hot.peak == low
        provenance = Provenance(made) if isinstance(made, str) else made
        return cls(hot, provenance, low, proved)

    def coming_from(self, **changes: Any) -> Plan:
        """The same plan, where `changes` say fields of its provenance anew."""
        return replace(self, provenance=replace(self.provenance, **changes))

    @property
    def varies(self) -> bool:
        """Whether steps are of many sizes, or of several kinds in no order.

        What the recorded run took then tells little of another run.
        """
        return self.elastic or self.lifespan_bytes > 0

    @property
    def pays(self) -> bool:
        """False if it is known that torch would reserve more of a GPU under the plan.

        Where sizes vary, two in a hundred more are no sign: what torch reserves for
        them grows from step to step, and the arena does not.
        """
        run = self.provenance.recorded_device
        most = run.reserved_bytes + (run.reserved_bytes // 50 if self.varies else 0)
        return not run.reserved_bytes or run.planned_bytes <= most

    def __repr__(self) -> str:
        return (
            f"Plan({self.provenance.method!r}, {len(self.problem):,} buffers, peak "
            f"{format_bytes(self.peak)}, lower bound {format_bytes(self.lower_bound)})"
        )

    def _repr_html_(self) -> str:
        proof = ", proved optimal" if self.proved_optimal else ""
        rows = [
            ("buffers", f"{len(self.problem):,}"),
            ("peak", format_bytes(self.peak)),
            ("lower bound", format_bytes(self.lower_bound)),
            ("gap", format_gap(self.gap) + proof),
            ("arena", format_bytes(self.arena_bytes)),
            ("method", self.provenance.method),
        ]
        made = self.provenance
        return facts_html(made.program.script or made.source.name or "plan", rows)

    @property
    def problem(self) -> Problem:
        """The buffers of the hot steps."""
        return self.hot.problem

    @property
    def offsets(self) -> Int64Array:
        """Where the buffers of the hot steps lie: bytes, shape (n,)."""
        return self.hot.offsets

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All of them, in the order: warm-up, hot steps, other kinds."""
        before = () if self.warmup is None else (self.warmup,)
        return *before, self.hot, *self.kinds

    @property
    def peak(self) -> int:
        """Bytes of the hot steps' arena: up to the highest that a buffer takes up."""
        return self.hot.peak

    @property
    def lane_bytes(self) -> int:
        """Bytes of one lane: the peak of the hot steps and of all other kinds."""
        return max(placed.peak for placed in (self.hot, *self.kinds))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena, or of all lanes together."""
        return self.lifespan_bytes or self.lane_bytes * max(self.lanes, 1)

    @property
    def warmup_room(self) -> int:
        """Bytes that offsets of the warm-up may reach."""
        return max(self.peak, self.lifespan_bytes)

    @property
    def gap(self) -> float:
        """(peak - lower bound) / lower bound; 0.0 for an optimal plan."""
        low = self.lower_bound
        return (self.peak - low) / low if low else 0.0

    @property
    def status(self) -> str:
        """ "optimal" when proved, else "feasible"."""
        return "optimal" if self.proved_optimal else "feasible"
