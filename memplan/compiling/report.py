"""What compiling a model brought, as measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan.compiling.outcomes import Seen
from memplan.core.plan import Plan
from memplan.graph.weights import Watch

RECHECKED = 4  # calls of a model that runs unchanged, until it is looked at again


@dataclass
class Fallback:
    """Why a model runs unchanged.

    seen: its layers, if known. watch: the model's state then; None to never check
    again. every: calls between checks.
    """

    reason: str
    seen: Seen | None = None
    watch: Watch | None = None
    every: int = RECHECKED
    _calls: int = 0

    def stale(self) -> bool:
        """Whether a check is due and finds that the model has changed."""
        self._calls += 1
        if self.watch is None or self._calls % self.every:
            return False
        return not self.watch.same_modules()


@dataclass(frozen=True)
class CompilePlan:
    """The result of `memplan.compile`. Bytes are of activations, without parameters
    and inputs.

    status: "compiled", or "unchanged" if the model runs as it was, for `reason`; that
    also says why images do not run some at a time, if that was asked.
    bytes_before: the model's peak by the allocator's events. bytes_after: the arena and
    `beside`. arena: bytes of the arena. beside: the peak of what torch allocates while
    the program runs, its results among them. lent: values and blocks that lie in the
    memory of a result until it is written. peak_operator, peak_line: where the most
    bytes of the arena are live, and that line as `file:line`. requests_before,
    requests_after: to the allocator, each call. asking: operator -> how often a call
    has torch allocate its result. operators: of the program that runs, views included.
    loops: how many run in chunks. again: the values that are computed a second time.
    order_proof: "bound" or "search" if no order of these operators needs less; "" if
    one may. order_bound: bytes that every order needs. kernels, fused: how many of
    memplan's own kernels run, and for how many of the model's operators. folded: bytes
    of constants computed in advance, which are kept. packed: bytes of convolutions'
    weights that are kept in their kernels' layout, beside the model's. error: largest
    relative error to the model. seconds_before, seconds_after: the least of several
    runs in turns. plan: the arena's plan, which says how good it is. parts: by path,
    the submodules that run in one arena, of a model that cannot be exported, for
    `reason`; it then has no `plan` of its own, and their operators are counted.
    internal_errors: how many sets of kernels, regions or plans each defect of memplan
    dropped.
    """

    status: str
    reason: str
    torch: str
    bytes_before: int
    bytes_after: int = 0
    arena: int = 0
    beside: int = 0
    lent: int = 0
    peak_operator: str = ""
    peak_line: str = ""
    requests_before: int = 0
    requests_after: int = 0
    asking: dict[str, int] | None = None
    operators: int = 0
    loops: int = 0
    again: tuple[str, ...] = ()
    order_proof: str = ""
    order_bound: int = 0
    kernels: int = 0
    fused: int = 0
    folded: int = 0
    packed: int = 0
    error: float = 0.0
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    plan: Plan | None = None
    parts: dict[str, CompilePlan] = field(default_factory=dict)
    internal_errors: dict[str, int] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        """The ratio of the two times; 1 for a model that runs unchanged."""
        return self.seconds_after / self.seconds_before if self.seconds_before else 1.0


@dataclass(frozen=True)
class Front:
    """What less memory costs in time.

    plans: those that no other beats in both memory and time, the fastest first.
    interrupted: whether Ctrl-C ended the search, so that lower ones may be missing.
    internal_errors: how many regions or plans each defect of memplan dropped.
    """

    plans: tuple[CompilePlan, ...]
    interrupted: bool = False
    internal_errors: dict[str, int] = field(default_factory=dict)
