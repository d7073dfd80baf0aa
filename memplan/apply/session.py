"""The runtime loader: serves a running program's requests from a plan."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from memplan.apply.report import Report, make_report
from memplan.core.plan import Plan, Program, Requests
from memplan.core.planfile import read_plan
from memplan.core.problem import Int64Array
from memplan.core.verify import verify
from memplan.errors import InputError, UsageError
from memplan.record.boundary import Boundaries
from memplan.record.shim import install
from memplan.trace.trace import Mark

ALIGNMENT = 64  # bytes; of every block that torch's CPU allocator hands out
_MARKS = {mark.name.lower(): mark for mark in Mark}


class Loader:
    """Serves this process's CPU tensors from one plan, from `start` to `stop`.

    Whatever the program does, no two live blocks share an address: a request that
    departs from the plan is placed in the arena's free space, or by torch's own
    allocator, and counted.
    """

    def __init__(self, plan: Plan, name: str = "the plan") -> None:
        """Check `plan`; `name` stands for it in messages.

        Raises InputError if it does not verify, has no program to replay, or was
        made for another device.
        """
        violations = verify(plan)
        if violations:
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise InputError(
                f"{name} does not verify: {violations[0].message}{more}; "
                "solve the trace again"
            )
        if plan.requests is None:
            raise InputError(
                f"{name} was made from a bare problem and has no requests to replay; "
                "record a program and solve its trace"
            )
        if plan.device != "cpu":
            raise InputError(f"{name} is for device {plan.device}, and this is the CPU")
        if (plan.problem.alignment % ALIGNMENT != 0).any():
            raise InputError(
                f"{name} has offsets that are not multiples of {ALIGNMENT} bytes, as "
                "torch wants them; solve the trace again, without --alignment"
            )
        self.plan = plan
        mark = _MARKS.get(plan.program.marks, Mark.NONE)
        kinds = () if mark is Mark.NONE else (mark,)
        self._boundaries = Boundaries(self._step, kinds)
        self._started = False

    def start(self) -> None:
        """Begin to serve. Raises EnvironmentUnfitError where that is not possible."""
        from memplan.native import _alloc

        install("applying a plan")
        sizes, offsets, starts, loop_start = replay_arrays(self.plan)
        self._boundaries.start()
        self._replay = _alloc.make_replay(
            sizes, offsets, starts, loop_start, self.plan.peak
        )
        self._replay.start()
        self._started = True

    def stop(self) -> None:
        """Serve no more; blocks still alive stay where they are, and valid."""
        from memplan.native import _alloc

        if self._started:
            _alloc.pass_through()
            self._boundaries.stop()

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
        )

    def _step(self, mark: Mark) -> None:
        from memplan.native import _alloc

        _alloc.mark_step(mark)


@contextlib.contextmanager
def apply(plan: Plan | str | os.PathLike[str]) -> Iterator[Loader]:
    """Serve the block's CPU tensors from `plan`, a Plan or a plan file.

    `with memplan.apply("plan.json") as loader: train()`; afterwards
    `loader.report()` tells how it went. Raises what Loader raises.
    """
    if isinstance(plan, Plan):
        loader = Loader(plan)
    else:
        loader = Loader(read_plan(plan), str(plan))
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()


def check_program(plan: Plan, running: Program, name: str) -> None:
    """Raise InputError unless `plan` was made for the program about to run.

    The same source or the same name will do: scripts get edited, and move. What
    they then ask for is matched request by request.
    """
    planned = plan.program
    same_source = bool(planned.sha256) and planned.sha256 == running.sha256
    if planned.script and not same_source and planned.script != running.script:
        raise InputError(
            f"{name} was made for {planned.script}, not for {running.script}; "
            f"record {running.script} and solve its trace"
        )


def replay_arrays(plan: Plan) -> tuple[Int64Array, Int64Array, Int64Array, int]:
    """Sizes and offsets (-1: unplanned) of all requests, the steps' first indexes,
    and the step from which on they repeat."""
    parts: list[tuple[Requests, Int64Array]] = []
    if plan.warmup is not None:
        parts.append((plan.warmup.requests, plan.warmup.offsets))
    loop_start = len(plan.warmup.requests.starts) if plan.warmup is not None else 0
    if plan.requests is not None:
        parts.append((plan.requests, plan.offsets))
    sizes: list[Int64Array] = []
    offsets: list[Int64Array] = []
    starts: list[int] = []
    before = 0
    for requests, places in parts:
        # UNPLANNED is -1 and finds the entry appended.
        offsets.append(np.append(places, -1)[requests.buffer])
        sizes.append(requests.size)
        starts.extend(before + first for first in requests.starts)
        before += len(requests)
    return (
        np.concatenate(sizes).astype(np.int64),
        np.concatenate(offsets).astype(np.int64),
        np.array(starts, dtype=np.int64),
        loop_start,
    )
