"""Checks a plan that computes modules again: the same bits, and the peak it promised.

The program runs a few steps in processes of its own: as it is, and with the plan's
units computed again. Losses, gradients, buffers and generators' states must be equal to
the last bit. Where they are not, halving the units finds which of them differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memplan.applying.trial_step import Digests, Order, is_gone
from memplan.core.plan import Plan
from memplan.errors import InputError, RecordError, UsageError
from memplan.formats.strictjson import parse
from memplan.recording.forking import ForkServer, last_error
from memplan.recording.target import Target
from memplan.scratch import scratch_folder
from memplan.trace.lives import lives_of
from memplan.trace.read import read_trace
from memplan.trace.trace import Trace

STEPS = 3  # of a run: the first one makes the optimizer's state
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # of runs: they must be alike


@dataclass(frozen=True, eq=False)
class Run:
    """One run. passes: what each backward pass computed. trace: of the run; peak: its
    most live bytes. failure: the last thing said by a program that failed, or ""."""

    passes: tuple[Digests, ...]
    trace: Trace | None
    recomputations: int
    failure: str

    @property
    def peak(self) -> int:
        """The most live bytes, as blocks are aligned; 0 where the run failed."""
        if self.trace is None:
            return 0
        return int(lives_of(self.trace).taken_bytes.max(initial=0))


@dataclass(frozen=True)
class Verdict:
    """What a trial found.

    differing: units that compute something else the second time, by name, and the first
    thing that differs, or what the program said when it failed. unlike: what differs
    between two runs of the program as it is, so that nothing can be compared; "" if
    nothing does. peak: bytes, measured, of all units together; eager: without any.
    compared: values. runs: of the program.
    """

    differing: dict[str, str]
    unlike: str
    peak: int
    eager: int
    compared: int
    runs: int


class Rehearsal:
    """Runs a program with some of a plan's units computed again."""

    def __init__(
        self, plan: Plan, path: Path, target: Target, server: ForkServer
    ) -> None:
        """path: of the plan's file. server: with ENVIRONMENT.

        Raises UsageError if the plan computes nothing again.
        """
        if plan.recompute is None or not plan.recompute.units:
            raise UsageError(
                f"{path} computes nothing again, so there is nothing to try; make a "
                "plan with memplan solve --budget"
            )
        self.part = plan.recompute
        self._path, self._target, self._server = path, target, server
        self.runs = 0

    def run(self, units: Sequence[int], device: str = "auto") -> Run:
        """Run it. units: indexes. device: as for `record`.

        Raises RecordError if it failed before any backward pass, with no units.
        """
        self.runs += 1
        with scratch_folder("memplan-trial-") as folder:
            result, trace = folder / "result.json", folder / "trace.parquet"
            order = Order(
                str(self._path.absolute()),
                tuple(units),
                device,
                STEPS,
                str(result),
                str(trace),
                self._target.name,
                self._target.arguments,
                self._target.is_module,
            )
            done = self._server.run("memplan.applying.trial_step", [order.encode()])
            failure = ""
            if done.code:
                said = done.said.strip().splitlines()
                failure = last_error(said) or "it printed nothing"
            if not result.exists() or not trace.exists():
                return Run((), None, 0, failure or "it recorded nothing")
            found = parse(result.read_bytes(), result)
            assert isinstance(found, dict)  # written by `trial_step`
            passes, times = tuple(found["passes"]), int(found["recomputations"])
            return Run(passes, read_trace(trace), times, failure)


def try_out(rehearsal: Rehearsal, said: Callable[[str], None]) -> Verdict:
    """Try all units; where something differs, find which. said: told of each run.

    Raises RecordError if the program fails as it is, and InputError if it has none of
    the units.
    """
    names = [unit.name for unit in rehearsal.part.units]
    everything = list(range(len(names)))
    said("the program as it is")
    eager = rehearsal.run(())
    if eager.failure or not eager.passes:
        why = eager.failure or "no backward pass was seen in its first steps"
        raise RecordError(f"the program cannot be tried as it is: {why}")
    said(f"with {len(names):,} units computed again")
    together = rehearsal.run(everything)
    if not together.failure and not together.recomputations:
        raise InputError(
            f"the program computed none of the plan's {len(names):,} units again in "
            f"its first {STEPS} steps: the plan was made for another one"
        )
    problem = _difference(eager, together)
    compared = sum(not is_gone(name) for each in eager.passes for name in each)
    peak, before = together.peak, eager.peak
    if not problem:
        return Verdict({}, "", peak, before, compared, rehearsal.runs)
    said("the program as it is, once more")
    unlike = _difference(eager, rehearsal.run(()))
    if unlike:
        return Verdict({}, unlike, peak, before, compared, rehearsal.runs)
    differing: dict[str, str] = {}

    def halve(units: list[int], problem: str) -> None:
        if len(units) == 1:
            differing[names[units[0]]] = problem
            return
        half = len(units) // 2
        found = False
        for part in (units[:half], units[half:]):
            said(f"{len(part):,} of the units computed again")
            if problem_here := _difference(eager, rehearsal.run(part)):
                found = True
                halve(part, problem_here)
        if not found:  # only together
            differing.update({names[i]: f"together: {problem}" for i in units})

    halve(everything, problem)
    return Verdict(differing, "", peak, before, compared, rehearsal.runs)


def _difference(one: Run, other: Run) -> str:
    """The first thing in which two runs differ; "" if nothing does."""
    if other.failure:
        return other.failure
    for number, (first, second) in enumerate(
        zip(one.passes, other.passes, strict=False)
    ):
        names = first.keys() | second.keys()
        gone = tuple(f"{each.partition(' ')[2]}:" for each in names if is_gone(each))
        for name in sorted(names):
            if is_gone(name) or name.partition(" ")[2].startswith(gone):
                continue
            if first.get(name) != second.get(name):
                return f"{_plain(name)} differs after backward pass {number + 1}"
    if len(one.passes) != len(other.passes):
        return f"{len(other.passes)} backward passes instead of {len(one.passes)}"
    return ""


def _plain(name: str) -> str:
    """A value's name without the number of the first outermost module."""
    return name.replace(" 0:", " ", 1)
