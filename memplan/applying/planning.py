"""Plans made in a thread of their own, in a small part of the program's time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from memplan.core.plan import Plan
from memplan.core.verify import verify
from memplan.errors import MemplanError

SOLVING_SHARE = 0.01  # of the program's CPU time may go into planning anew
REQUEST_SECONDS = 3e-5  # about what one takes to be planned
SOLVING_SECONDS = 0.05  # and so much is free


@dataclass(frozen=True)
class Made:
    """What came out of planning anew; plan: None if nothing did."""

    reason: str
    seconds: float
    plan: Plan | None


class PlanningThread:
    """Makes one plan at a time."""

    def __init__(self) -> None:
        self._begun = time.process_time()
        self._spent = 0.0
        self._thread: threading.Thread | None = None
        self._made: Made | None = None  # set by that thread, as its last act

    def affordable(self, requests: int) -> bool:
        """Whether one more plan, made from so many requests, is."""
        allowed = SOLVING_SHARE * (time.process_time() - self._begun)
        needed = REQUEST_SECONDS * requests
        return self._spent + needed <= SOLVING_SECONDS + allowed

    @property
    def busy(self) -> bool:
        """A plan is in the making, or was not taken yet."""
        return self._made is not None or (
            self._thread is not None and self._thread.is_alive()
        )

    def start(self, reason: str, make: Callable[[], Plan | None]) -> None:
        """Begin with a plan; `make` raises MemplanError if there is none."""
        self._thread = threading.Thread(
            target=self._make, args=(reason, make), name="memplan-replan", daemon=True
        )
        self._thread.start()

    def take(self) -> Made | None:
        """What was made meanwhile, once."""
        made, self._made = self._made, None
        return made

    def join(self) -> None:
        """Wait for a plan in the making."""
        if self._thread is not None:
            self._thread.join()

    def _make(self, reason: str, make: Callable[[], Plan | None]) -> None:
        begun = time.perf_counter()
        plan = None
        try:
            plan = make()
            if plan is not None and verify(plan):
                plan = None
        except MemplanError:
            pass
        except Exception as error:  # in somebody's program, a failure of ours is told
            print(f"memplan: planning anew failed: {error!r}", file=sys.stderr)
        seconds = time.perf_counter() - begun
        self._spent += seconds
        self._made = Made(reason, seconds, plan)
