"""The runtime loader: serves a running program's requests from a plan."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from memplan.applying.lanes import Lanes, replays_of
from memplan.applying.replan import Replanner
from memplan.applying.report import Report, make_report
from memplan.applying.residency import where_memory_lives
from memplan.applying.suitability import check_plan, step_marks
from memplan.applying.tables import replay_arrays
from memplan.core.plan import Plan
from memplan.core.planfile import read_plan
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.recording.boundary import Boundaries
from memplan.recording.resident import resident_bytes
from memplan.recording.shim import install
from memplan.trace.trace import Mark
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.applying.cuda import CudaLoader
    from memplan.native._alloc import Replay

# Address space for plans to come, of which nothing is resident before it is used.
GROWTH = 4
SPARE = 1 << 30
COLD_STEPS = 32  # pages that no block used in so many steps go back to the system


class Loader:
    """Serves this process's CPU tensors from one plan, from `start` to `stop`.

    Whatever the program does, no two live blocks share an address: a request that
    departs from the plan is placed in the arena's free space, or by torch's own
    allocator, and counted.
    """

    def __init__(
        self, plan: Plan, name: str = "the plan", *, replan: bool = True
    ) -> None:
        """Check `plan`; `name` stands for it in messages.

        replan: make the plan anew, while the program runs, where it does not fit.

        Raises InputError if it does not verify, has no program to replay, or was
        made for another device.
        """
        check_plan(plan, name, "cpu")
        self.plan = plan
        self._boundaries = Boundaries(self._step, step_marks(plan))
        self._replan = replan
        self._replanner: Replanner | None = None
        self._before = 0
        self._started = self._running = False
        self._watching = threading.Lock()

    def start(self) -> None:
        """Begin to serve. Raises EnvironmentUnfitError where that is not possible."""
        install("applying a plan")
        self._boundaries.start()
        try:
            self._replanner = None
            self._replay = self._make_replay()
            self._before = resident_bytes()
            if isinstance(self._replay, Lanes):
                started = self._replay.start()
            else:
                if self._replan and step_marks(self.plan):
                    self._replanner = Replanner(self.plan, self._replay)
                started = self._replay.start()
            if not started:
                raise EnvironmentUnfitError(
                    "this process has applied too many plans; start a new one"
                )
        except BaseException:
            self._boundaries.stop()
            raise
        self._started = self._running = True

    def _make_replay(self) -> Replay | Lanes:
        """With room for plans to come, if the system grants it."""
        from memplan.native import _alloc

        arena = self.plan.arena_bytes
        arrays = replay_arrays(self.plan)
        if self.plan.lanes:
            with contextlib.suppress(MemoryError, OverflowError, TypeError):
                return Lanes(arrays, self.plan.lane_bytes, self.plan.lanes, COLD_STEPS)
            self._refuse()
        for reserve in (arena * GROWTH + SPARE, arena)[not self._replan :]:
            online = reserve if self.plan.elastic else arena
            # Only the native code knows what address space is left.
            with contextlib.suppress(MemoryError, OverflowError, TypeError):
                table = arrays.table(arena, online)
                return _alloc.make_replay(table, reserve, COLD_STEPS)
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise EnvironmentUnfitError(
            f"the system refuses {format_bytes(self.plan.arena_bytes)} of address "
            "space for the plan's arena; is there a limit (ulimit -v)?"
        )

    def stop(self) -> None:
        """Serve no more; blocks still alive stay where they are, and valid."""
        from memplan.native import _alloc

        if self._running:
            self._running = False
            _alloc.pass_through()
            self._boundaries.stop()
            if self._replanner is not None:
                self._replanner.finish()

    def report(self) -> Report:
        """How it went so far. Raises UsageError before `start`."""
        from memplan.native import _alloc

        if not self._started:
            raise UsageError("nothing to report: the loader was not started")
        return make_report(
            self.plan,
            self._replay.hot_counts(),
            self._replay.warmup_counts(),
            self._replay.arena_bytes,
            _alloc.step_marks(),
            replans=() if self._replanner is None else tuple(self._replanner.replans),
            interrupted_requests=_alloc.interrupted_requests(),
            memory=where_memory_lives(
                self._before, replays_of(self._replay), _alloc.tensor_bytes()
            ),
        )

    def _step(self, mark: Mark) -> None:
        from memplan.native import _alloc

        # Should threads mark steps side by side, one of them does the watching. Nor may
        # a forked child wait for a thread that it does not have.
        alone = self._replanner is not None and self._watching.acquire(blocking=False)
        if self._replanner is None or not alone:
            _alloc.mark_step(mark)
            return
        try:
            self._replanner.adopt_ready()
            _alloc.mark_step(mark)
            self._replanner.step_ended()
        finally:
            self._watching.release()


def loader_of(plan: Plan, name: str, *, replan: bool = True) -> Loader | CudaLoader:
    """The loader for the plan's device; `name` stands for the plan in messages."""
    if plan.provenance.device != "cuda":
        return Loader(plan, name, replan=replan)
    from memplan.applying.cuda import CudaLoader

    return CudaLoader(plan, name)


@contextlib.contextmanager
def apply(
    plan: Plan | str | os.PathLike[str], *, replan: bool = True
) -> Iterator[Loader | CudaLoader]:
    """Serve the block's tensors from `plan`, a Plan or a plan file.

    replan: as for Loader; a plan for CUDA (experimental) stays as it is, and is in
    force until the process ends.

    `with memplan.apply("plan.json") as loader: train()`; afterwards
    `loader.report()` tells how it went. Raises what Loader raises.
    """
    found = plan if isinstance(plan, Plan) else read_plan(plan)
    name = "the plan" if isinstance(plan, Plan) else str(plan)
    loader = loader_of(found, name, replan=replan)
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()
