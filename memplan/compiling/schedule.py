"""A program's operators in order, in one arena at verified offsets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from memplan.compiling.passes import Flat, expanded, folded
from memplan.compiling.serve import overwritable, served
from memplan.core.plan import Plan
from memplan.core.verify import verify
from memplan.errors import MemplanError
from memplan.graph.execute import Served, Tape
from memplan.graph.infer import Inference
from memplan.graph.lives import ALIGNMENT, lives
from memplan.graph.order import Order, least_peak, reordered, tasks_of
from memplan.graph.program import Op, Program
from memplan.solving.solve import solve

ARENAS = 8  # calls that run at the same time; further ones wait


@dataclass(frozen=True)
class Schedule:
    """What runs, in which order, and where its results lie.

    source: the program before passes. flat: after them. order: what is known of the
    order. plan: the arena, a buffer for each storage. offsets: bytes in it, by the root
    of a storage. over: results in the memory of an operand. served: how operators write
    where they are told; torch allocates the results of others.
    """

    source: Program
    flat: Flat
    order: Order
    plan: Plan
    offsets: dict[str, int]
    over: dict[str, str]
    served: dict[str, Served]

    @property
    def asking(self) -> list[str]:
        """The operators whose results torch allocates, each time they stand."""
        program = self.flat.program
        return [
            op.key  # type: ignore[union-attr]
            for op in program.ops
            if op.name not in self.served
            and program.roots[op.name] in (op.name, (f"{op.name}[0]",))
        ]

    def tape(self) -> Tape:
        """The program bound to an arena of its own."""
        arena = torch.empty(self.plan.peak + ALIGNMENT, dtype=torch.uint8)
        start = -arena.data_ptr() % ALIGNMENT
        return Tape(
            self.flat.program,
            arena[start:],
            self.offsets,
            self.over,
            self.served,
            self.flat.constants,
        )


def scheduled(
    program: Program, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> Schedule:
    """A program for inputs of these shapes, on a CPU.

    constants: the values of `program.constants`. The order is the best that is found,
    offsets come from `memplan.solve`. Raises MemplanError if they do not verify.
    """
    flat = folded(expanded(program, dict(constants), Inference()))
    ways = served(flat.program, flat.constants, inputs)

    def candidates(op: Op) -> list[str]:
        found = overwritable(op, ways.get(op.name))
        # The results of torch's own may lie otherwise than their metas say.
        return [name for name in found if flat.program.roots[name] in ways]

    order = least_peak(tasks_of(flat.program, candidates=candidates))
    flat = replace(flat, program=reordered(flat.program, order.order))
    found = lives(flat.program, ways.keys(), candidates)
    plan = solve(found.problem)
    if violations := verify(plan):
        raise MemplanError(f"the plan of an arena does not verify: {violations[0]}")
    offsets = dict(zip(found.roots, map(int, plan.offsets), strict=True))
    return Schedule(program, flat, order, plan, offsets, found.over, ways)


@dataclass
class Pool:
    """Tapes of a schedule, one for each call that runs at the same time.

    schedule: of all of them. limit: tapes at most; calls beyond wait for one.
    """

    schedule: Schedule
    limit: int = ARENAS
    _free: list[Tape] = field(default_factory=list)
    _made: int = 0
    _turn: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def tape(self) -> Iterator[Tape]:
        """A tape that no other call uses."""
        with self._turn:
            while not self._free and self._made >= self.limit:
                self._turn.wait()
            tape = self._free.pop() if self._free else None
            self._made += tape is None
        try:
            if tape is None:
                tape = self.schedule.tape()
            yield tape
        finally:
            with self._turn:
                if tape is None:
                    self._made -= 1
                else:
                    self._free.append(tape)
                self._turn.notify()
