"""The runtime loader: serves a running program's requests from a plan."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from memplan.applying.lanes import Lanes, replays_of
from memplan.applying.payoff import GivenUp
from memplan.applying.recompute import recompute_of
from memplan.applying.replan import Replanner
from memplan.applying.report import Before, Report, make_report, where_memory_lives
from memplan.applying.suitability import check_plan
from memplan.core.plan import Plan
from memplan.core.planfile import as_plan
from memplan.core.tables import (
    replay_arrays,
    room_for_departures,
)
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.recording.boundary import Boundaries
from memplan.recording.shim import install
from memplan.recording.usage import StepClock
from memplan.trace.steps import step_marks
from memplan.trace.trace import Mark
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.applying.cuda import CudaLoader, StreamPlan
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
        self._boundaries = Boundaries(self._step, step_marks(plan.provenance.program))
        self._recompute = recompute_of(plan, name)
        self._replan = replan
        self._replanner: Replanner | None = None
        self._before = Before()
        self._clock = StepClock()
        self._running = False
        self._watching = threading.Lock()

    def start(self) -> None:
        """Begin to serve. Raises EnvironmentUnfitError where that is not possible."""
        from memplan.native import _alloc

        install("applying a plan")
        self._boundaries.start()
        try:
            self._replay = self._make_replay()
            self._replanner = self._make_replanner()
            self._before = Before.now(_alloc.tensor_bytes())
            self._clock = StepClock()
            if not self._replay.start():
                raise EnvironmentUnfitError(
                    "this process has applied too many plans; start a new one"
                )
        except BaseException:
            self._boundaries.stop()
            raise
        self._running = True
        if self._recompute is not None:
            self._recompute.start()

    def _make_replay(self) -> Replay | Lanes:
        """With room for plans to come, if the system grants it."""
        from memplan.native import _alloc

        arena = self.plan.arena_bytes
        arrays = replay_arrays(self.plan)
        if self.plan.lanes:
            with contextlib.suppress(MemoryError, OverflowError, TypeError):
                recorded = self.plan.provenance.recorded
                lane_bytes, count = self.plan.lane_bytes, self.plan.lanes
                return Lanes(arrays, lane_bytes, count, COLD_STEPS, recorded)
            self._refuse()
        for reserve in (arena * GROWTH + SPARE, arena)[not self._replan :]:
            online = room_for_departures(self.plan, arena, reserve)
            # Only the native code knows what address space is left.
            with contextlib.suppress(MemoryError, OverflowError, TypeError):
                table = arrays.table(arena, online)
                return _alloc.make_replay(table, reserve, COLD_STEPS)
        self._refuse()

    def _make_replanner(self) -> Replanner | None:
        if isinstance(self._replay, Lanes) or not self._replan:
            return None
        replay = self._replay
        if not step_marks(self.plan.provenance.program):
            return None
        return Replanner(
            self.plan,
            replay,
            lambda arrays, arena, online: replay.adopt(arrays.table(arena, online)),
        )

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
            if self._recompute is not None:
                self._recompute.stop()
            _alloc.pass_through()
            self._boundaries.stop()
            if self._replanner is not None:
                self._replanner.finish()

    def report(self) -> Report:
        """How it went so far; after `start`."""
        from memplan.native import _alloc

        return make_report(
            self.plan,
            self._replay.hot_counts(),
            self._replay.warmup_counts(),
            self._replay.arena_bytes,
            self._step_clock(),
            replans=() if self._replanner is None else tuple(self._replanner.replans),
            given_up=self._given_up(),
            interrupted_requests=_alloc.interrupted_requests(),
            recompute=None if self._recompute is None else self._recompute.report(),
            memory=where_memory_lives(
                self._before, replays_of(self._replay), _alloc.tensor_bytes()
            ),
        )

    def _step_clock(self) -> StepClock:
        """When steps began; without marks the native code has seen it."""
        if step_marks(self.plan.provenance.program):
            return self._clock
        from memplan.native import _alloc

        return StepClock.of_turns(*_alloc.turns())

    def _given_up(self) -> tuple[GivenUp, ...]:
        if isinstance(self._replay, Lanes):
            return self._replay.given_up
        return () if self._replanner is None else tuple(self._replanner.given_up)

    def _step(self, mark: Mark) -> None:
        from memplan.native import _alloc

        self._clock.note(mark)
        # Should threads mark steps side by side, one of them does the watching. Nor may
        # a forked child wait for a thread that it does not have.
        lanes = self._replay if isinstance(self._replay, Lanes) else None
        watched = self._replanner or lanes
        if watched is None or not self._watching.acquire(blocking=False):
            _alloc.mark_step(mark)
            return
        try:
            if self._replanner is not None:
                self._replanner.adopt_ready()
            _alloc.mark_step(mark)
            watched.step_ended()
        finally:
            self._watching.release()


def loader_of(
    plan: Plan,
    name: str,
    *,
    replan: bool = True,
    device: int | None = None,
    others: Sequence[StreamPlan] = (),
) -> Loader | CudaLoader:
    """The loader for the plan's device; `name` stands for the plan in messages.

    device: of CUDA's, by its index; None: the first. others: plans for more of them.
    Raises UsageError where either is given, and the plan is for the CPU.
    """
    if plan.provenance.device != "cuda":
        if device is not None or others:
            raise UsageError(f"{name} is for the CPU: leave out --device")
        return Loader(plan, name, replan=replan)
    from memplan.applying.cuda import CudaLoader

    return CudaLoader(plan, name, device=device or 0, others=others, replan=replan)


@contextlib.contextmanager
def apply(
    plan: Plan | str | os.PathLike[str], *, replan: bool = True
) -> Iterator[Loader | CudaLoader]:
    """Serve the block's tensors from `plan`, a Plan or a plan file.

    replan: as for Loader. CUDA is experimental.

    `with memplan.apply("plan.json") as loader: train()`; afterwards
    `loader.report()` tells how it went. Raises what Loader raises, TypeError for
    anything else than a plan or a path, InputError for a file that cannot be read.
    """
    found = as_plan(plan)
    name = "the plan" if isinstance(plan, Plan) else str(plan)
    loader = loader_of(found, name, replan=replan)
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()
