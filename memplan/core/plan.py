"""A Plan: an offset for every buffer, how good it is, and how to replay it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem

UNPLANNED = -1  # in `Requests.buffer`: the default allocator serves this request


@dataclass(frozen=True)
class Program:
    """What was recorded, so that `apply` can tell whether it runs the same thing.

    script: file name or module name; sha256: of the script's source, hex, or "".
    marks: what cuts its steps ("explicit", "optimizer", "forward", "none").
    """

    script: str = ""
    sha256: str = ""
    torch: str = ""
    threads: int = 0
    marks: str = "none"


@dataclass(frozen=True)
class RunStats:
    """How a run went: bytes, faults per steady step, median seconds per steady step."""

    peak_rss_bytes: int = 0
    page_faults_per_step: float = 0.0
    step_seconds: float = 0.0


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

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, eq=False)
class Warmup:
    """The steps before the hot ones, placed so that the hot plan can take over.

    Its clock is linear, from the start of the recording; `problem.length` is None
    and `ticks` is where the first hot step begins.
    """

    problem: Problem
    offsets: Int64Array
    requests: Requests
    ticks: int


@dataclass(frozen=True, eq=False)
class Kind:
    """A step of another kind than the hot ones: a short last batch, an evaluation.

    Its clock is linear and begins with the step; buffers may outlive the step by one.
    seen: how many steps of the recording were of this kind.
    """

    problem: Problem
    offsets: Int64Array
    requests: Requests
    seen: int = 1

    @property
    def peak(self) -> int:
        """The highest top of its buffers, in bytes."""
        return self.problem.peak(self.offsets)


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


@dataclass(frozen=True, eq=False)
class Plan:
    """Offsets in bytes for every buffer of `problem`, int64, shape (n,).

    lower_bound: bytes no plan can do with less than.
    proved_optimal: the peak is known to be least, by the bound or by a search.
    seconds: how long solving took; not written to the file, whose bytes repeat.
    stated: what the file says of itself, where the plan was read from one.
    note: how it was found, for people; not written to the file.
    kinds: steps that may stand in place of a hot one, in the same arena.
    elastic: requests of the hot steps are told by their place in the step, and may be
        for fewer bytes than planned.
    """

    problem: Problem
    offsets: Int64Array
    method: str
    lower_bound: int
    proved_optimal: bool = False
    seed: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    source: Source = field(default_factory=Source)
    program: Program = field(default_factory=Program)
    recorded: RunStats = field(default_factory=RunStats)
    requests: Requests | None = None
    warmup: Warmup | None = None
    stated: Stated | None = None
    note: str = ""
    kinds: tuple[Kind, ...] = ()
    elastic: bool = False

    @classmethod
    def of(
        cls,
        problem: Problem,
        offsets: Int64Array,
        method: str,
        *,
        proved_optimal: bool = False,
        seed: int = 0,
        seconds: float = 0.0,
        bound: int = 0,
        note: str = "",
    ) -> Plan:
        """A Plan with its lower bound: the problem's own, or `bound` if higher."""
        low = max(bound, lower_bound(problem))
        plan = cls(problem, offsets, method, low, proved_optimal, seed, seconds)
        proved = proved_optimal or plan.peak == low
        return replace(plan, proved_optimal=proved, note=note)

    @property
    def peak(self) -> int:
        """Bytes of the arena: the highest top, rounded up to the granularity."""
        if not len(self.problem):
            return 0
        unit = self.problem.granularity
        return -(-int((self.offsets + self.problem.size).max()) // unit) * unit

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena: the peak of the hot steps and of all other kinds."""
        return max([self.peak, *(kind.peak for kind in self.kinds)])

    @property
    def gap(self) -> float:
        """(peak - lower bound) / lower bound; 0.0 for an optimal plan."""
        return (
            (self.peak - self.lower_bound) / self.lower_bound
            if self.lower_bound
            else 0.0
        )

    @property
    def status(self) -> str:
        """ "optimal" when proved, else "feasible"."""
        return "optimal" if self.proved_optimal else "feasible"
