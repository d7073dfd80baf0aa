"""Operations to steps, steps to sequences that fit a cache (BrainSlug, 4.1).

A *step* has at most one pool. Element-wise operations always join the step that is
being filled, and a pool joins it if it has none yet, so that a step is element-wise
operations, a pool, element-wise operations, each part possibly empty. What stands
before the pool is applied where the values are read: once a value, on the way from the
step's input into its buffer, not once a window. What stands behind is applied
before the value is stored. Only the first step of a stack has operations before a
pool: later on they have joined the step of the pool before them.

A *sequence* is steps that run depth-first on one patch of a plane, from one buffer to
another and back. It ends where its working set would exceed the device's limit, and
where it has as many steps as it may have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from memplan.errors import UsageError
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.patches import Device, Patch, fit


@dataclass(frozen=True)
class Step:
    """Operations with at most one pool among them."""

    operations: tuple[Operation, ...]

    @cached_property
    def at(self) -> int:
        """Where the pool stands; the number of operations if there is none."""
        kinds = [operation.kind for operation in self.operations]
        return kinds.index("pool") if "pool" in kinds else len(kinds)

    @property
    def pool(self) -> Pool | None:
        """The step's pool, if it has one."""
        return self.operations[self.at].pool if self.at < len(self.operations) else None

    @property
    def before(self) -> tuple[Operation, ...]:
        """What is applied as values are read: all, if there is no pool."""
        return self.operations[: self.at]

    @property
    def after(self) -> tuple[Operation, ...]:
        """What is applied to what the pool gives, before it is stored."""
        return self.operations[self.at + 1 :]

    def __str__(self) -> str:
        return ", ".join(map(str, self.operations))


@dataclass(frozen=True)
class Sequence:
    """Steps that run depth-first, patch by patch.

    patch: rows and columns of the last step's plane that are made at a time.
    bytes: the working set of one patch: buffers, and rows that are carried on.
    """

    steps: tuple[Step, ...]
    patch: Patch
    bytes: int

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of its steps, in order."""
        return pools_of(self.steps)


@dataclass(frozen=True)
class Stack:
    """Operations that run as one, collapsed into sequences."""

    operations: tuple[Operation, ...]
    sequences: tuple[Sequence, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps of all its sequences, in order."""
        return tuple(step for sequence in self.sequences for step in sequence.steps)

    @property
    def operands(self) -> tuple[str, ...]:
        """Kinds of all operands, in the order in which operations take them."""
        return tuple(kind for each in self.operations for kind in each.operands)

    @cached_property
    def signature(self) -> str:
        """Same signature, same code: what it computes, and where sequences end.

        Neither the plane's size nor operands' values are in it.
        """
        return repr([sequence.steps for sequence in self.sequences])

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what comes out; raises UsageError if that is nothing."""
        return sizes(pools_of(self.steps), height, width)[-1]


def pools_of(steps: Iterable[Step]) -> tuple[Pool, ...]:
    """The pools of steps, in order."""
    return tuple(step.pool for step in steps if step.pool is not None)


def sizes(pools: Iterable[Pool], height: int, width: int) -> list[tuple[int, int]]:
    """Height and width of the plane before the first pool, and behind each.

    Raises UsageError where nothing would be left of it.
    """
    found = [(height, width)]
    for pool in pools:
        found.append(pool.size(*found[-1]))
        if min(found[-1]) < 1:
            before = "x".join(map(str, found[-2]))
            raise UsageError(f"{pool}: nothing comes out of a plane of {before}")
    return found


def steps_of(operations: Iterable[Operation]) -> tuple[Step, ...]:
    """Steps as full as they may be, in order (the paper's Listing 1, lines 2 to 12)."""
    steps: list[list[Operation]] = []
    for operation in operations:
        full = steps and any(each.kind == "pool" for each in steps[-1])
        if not steps or (full and not operation.elementwise):
            steps.append([])
        steps[-1].append(operation)
    return tuple(Step(tuple(step)) for step in steps)


def collapse(
    operations: Iterable[Operation],
    plane: tuple[int, int],
    device: Device,
    max_steps: int | None = None,
) -> Stack:
    """The stack of these operations for planes of (height, width) on this device.

    max_steps: the most steps a sequence may have; the paper's
    strategies are 1, 5 and None, for any number.
    A step that exceeds the device's limit by itself is a sequence of its own. Raises
    UsageError if nothing is left of the plane.
    """
    listed = tuple(operations)
    sequences: list[Sequence] = []
    current: list[Step] = []
    at = plane  # where the current sequence starts
    for step in steps_of(listed):
        together = pools_of([*current, step])
        sizes(together, *at)
        full = len(current) == max_steps
        if current and (full or fit(together, at, device)[1] > device.limit):
            sequences.append(_sequence(current, at, device))
            at = sizes(pools_of(current), *at)[-1]
            current = []
        current.append(step)
    sequences.append(_sequence(current, at, device))
    return Stack(listed, tuple(sequences))


def _sequence(steps: list[Step], plane: tuple[int, int], device: Device) -> Sequence:
    return Sequence(tuple(steps), *fit(pools_of(steps), plane, device))
