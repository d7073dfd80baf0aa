"""A program's operators in order, in one arena at verified offsets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from torch import Tensor

from memplan.chunking.canonical import with_plain_attention
from memplan.compiling.convolutions import packed
from memplan.compiling.kernels import Joined, converted, with_kernels
from memplan.compiling.layouts import straightened
from memplan.compiling.passes import Flat, copied, expanded, folded, unrolled
from memplan.compiling.scratch import with_less_scratch
from memplan.compiling.serve import Ways, ways_of
from memplan.core.plan import Plan
from memplan.core.verify import verify
from memplan.errors import MemplanError
from memplan.fusing.options import FuseOptions
from memplan.fusing.origins import Origins
from memplan.fusing.rewrites import with_rewrites
from memplan.graph.execute import Layout, Tape
from memplan.graph.infer import Inference
from memplan.graph.lending import ALIGNMENT
from memplan.graph.lives import lives
from memplan.graph.nest import storages
from memplan.graph.order import (
    EFFORT,
    Order,
    as_given,
    least_peak,
    reordered,
    tasks_of,
)
from memplan.graph.program import Program, Step, refs
from memplan.graph.script import NoTapeError
from memplan.recording.shim import install
from memplan.solving.solve import solve


@dataclass(frozen=True, eq=False)
class Schedule:
    """What runs, in which order, and where its results lie.

    flat: the program after all passes. order: what is known of the order. plan: the
    arena, a buffer for each storage and for each request of an operator. layout: where
    in it the results lie; torch allocates outputs that the arena does not hold. packed:
    bytes of weights that are kept in their kernels' layout as well. relieved: whether
    convolutions run with less scratch. lent: how many buffers lie in a result's memory
    until it is written. busiest: the operator at which the most bytes of the arena are
    live. joined: which of its layers run as memplan's kernels, if any do.
    """

    flat: Flat
    order: Order
    plan: Plan
    layout: Layout
    packed: int = 0
    relieved: bool = False
    lent: int = 0
    busiest: Step | None = None
    joined: Joined | None = None

    @property
    def beside(self) -> list[str]:
        """The operators whose memory, or some of it, torch allocates in each call."""
        return [
            op.key  # type: ignore[union-attr]
            for op in self.flat.program.ops
            if any(offset < 0 for _, offset, _ in self.layout.asked.get(op.name, ()))
        ]

    @cached_property
    def bytes(self) -> int:
        """Of memory that a tape is bound to."""
        return self.plan.peak + ALIGNMENT

    def tape(self, memory: Tensor) -> Tape:
        """The program bound to an arena in `memory`, of type uint8."""
        start = -memory.data_ptr() % ALIGNMENT
        arena = memory[start : start + self.plan.peak]
        return Tape(self.flat.program, arena, self.layout, self.flat.constants)


class PackedTooMuchError(Exception):
    """Packed weights take more than they may."""


@dataclass(frozen=True)
class Choices:
    """How a program is scheduled.

    kernels: what convolutions may run as, see FuseOptions, their weights kept in the
    kernels' layout, too; without any, as torch has them; LESS_SCRATCH alone, those
    at the peak with less scratch, if that can be. fusing: how else layers are fused.
    anywhere: also where no kernel is of a convolution of images. effort: of the search
    for an order, the best of which is taken. most: bytes that packed weights, and
    constants that are computed once, may take; None for any. folds: bytes of these
    constants where no weights are packed. holds_outputs: whether they lie in the arena.
    room: see `with_less_scratch`. reorders, overwrites: whether operators change
    places, and results may be written over operands. asks: whether the arena holds what
    operators ask the allocator for, too.
    """

    kernels: tuple[str, ...] = ()
    fusing: FuseOptions = field(default_factory=FuseOptions)
    anywhere: bool = False
    effort: int = EFFORT
    most: int | None = None
    folds: float = math.inf
    holds_outputs: bool = False
    room: int = 0
    reorders: bool = True
    overwrites: bool = True
    asks: bool = True


DEFAULTS = Choices()


@dataclass(frozen=True)
class Flattened:
    """A program after all passes. packed: bytes of packed weights. joined: see
    Schedule."""

    flat: Flat
    packed: int = 0
    joined: Joined | None = None


def flattened(
    program: Program,
    constants: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    choices: Choices,
    inference: Inference,
) -> Flattened:
    """The program after all passes; arguments as of `scheduled`. Where weights are
    packed, all that is constant is computed once: they may be among it."""
    if choices.kernels and choices.kernels != (LESS_SCRATCH,):
        found = _passed(program, constants, inputs, choices, inference, math.inf)
        if found.packed or found.joined or found.flat.folded <= choices.folds:
            return found
    plain = replace(choices, kernels=())
    return _passed(program, constants, inputs, plain, inference, choices.folds)


def _passed(
    program: Program,
    constants: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    choices: Choices,
    inference: Inference,
    most: float,
) -> Flattened:
    """The program after all passes; most: bytes of constants that are computed once."""
    origins, nbytes, joined = Origins(), 0, None
    given = storages(constants.values())
    program = with_plain_attention(program, inference)
    flat = unrolled(program, constants, inference)
    if not {"onednn", LESS_SCRATCH}.issuperset(choices.kernels):
        flat = replace(flat, program=with_rewrites(flat.program, inference, origins))
    flat = folded(flat, given, most)
    if choices.kernels:
        options = replace(choices.fusing, kernels=choices.kernels)
        how = inference, inputs, options, choices.anywhere, origins
        flat, joined = with_kernels(flat, *how)
        nbytes = joined.packs.bytes if joined is not None else 0
    flat = straightened(expanded(flat, inference), inference)
    flat = folded(flat, given, most)
    if choices.kernels:
        flat, more = packed(flat, inference)
        flat, nbytes = converted(flat, inference), nbytes + more
    return Flattened(flat, nbytes, joined)


LESS_SCRATCH = "less scratch"  # for `Choices.kernels`, alone


WORTH = 0.95  # of an arena, at most, where a result is copied


def _others(program: Program, ways: Ways) -> set[str]:
    """The storages of results but the largest if its kernel allocates it. Nothing can
    lie in that memory before, but in a copy's."""
    names = dict.fromkeys(refs(program.outputs))
    largest = max(names, key=lambda name: program.metas[name].bytes, default="")
    roots = {name: program.roots[name] for name in names}
    return {each for name, each in roots.items() if name != largest} | {*ways.served}


def _with_ways(
    flat: Flat, inputs: Sequence[Tensor], inference: Inference
) -> tuple[Flat, Ways]:
    """The program, whose kernels take copies of what lies otherwise than torch says,
    and how its operators get the memory of their results."""
    ways = ways_of(flat.program, flat.constants, inputs)
    if not ways.astray:
        return flat, ways
    flat = converted(flat, inference, ways.astray)
    ways = ways_of(flat.program, flat.constants, inputs)
    if ways.astray:
        raise NoTapeError("kernels, whose operands lie otherwise than planned")
    return flat, ways


def scheduled(
    program: Program,
    constants: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    choices: Choices = DEFAULTS,
    inference: Inference | None = None,
) -> Schedule:
    """A program for inputs of these shapes, on a CPU.

    constants: the values of `program.constants`. inference: one that knows most of its
    operators saves part of the time. Offsets come from `memplan.solve`.
    Raises MemplanError if they do not verify, PackedTooMuchError if weights take more
    than they may.
    """
    install("memplan.compile")  # it sees what operators ask for, and serves it
    inference = Inference(inference)
    passed = flattened(program, constants, inputs, choices, inference)
    flat, nbytes = passed.flat, passed.packed
    most = choices.most
    if most is not None and nbytes and nbytes + flat.folded > most:
        raise PackedTooMuchError
    flat, ways = _with_ways(flat, inputs, inference)
    relieved = False
    if choices.kernels == (LESS_SCRATCH,):
        over = partial(ways.overwritable, flat.program)
        less = with_less_scratch(flat, ways.asked, over, inference, choices.room)
        if relieved := less is not flat:
            flat, ways = less, ways_of(less.program, less.constants, inputs)
    if choices.holds_outputs:
        program, copies = copied(flat.program, ways.served.keys(), inference)
        flat = replace(flat, program=program)
        ways = ways.with_copies(copies)
    if not choices.overwrites:
        ways = replace(ways, apart=frozenset(ways.served))
    candidates = partial(ways.overwritable, flat.program)
    tasks = tasks_of(flat.program, ways.beside, candidates)
    order = least_peak(tasks, choices.effort) if choices.reorders else as_given(tasks)
    flat = replace(flat, program=reordered(flat.program, order.order))
    asked = ways.asked if choices.asks else {}
    held = ways.served.keys(), asked, candidates, choices.holds_outputs
    found = lives(flat.program, *held)
    if not choices.holds_outputs and found.loan is None:
        program, copies = copied(flat.program, _others(flat.program, ways), inference)
        late = ways.with_copies(copies)
        over = partial(late.overwritable, program)
        other = lives(program, late.served.keys(), asked, over)
        if other.loan is not None and other.least <= WORTH * found.least:
            flat, ways, found = replace(flat, program=program), late, other
    plan = solve(found.problem)
    plans = [plan, *([found.loan.plan] if found.loan else [])]
    if violations := [each for made in plans for each in verify(made)]:
        raise MemplanError(f"the plan of an arena does not verify: {violations[0]}")
    where = dict(zip(found.numbers, map(int, plan.offsets), strict=True))
    lent = found.loan.offsets if found.loan else {}
    where.update((number, plan.peak + at) for number, at in lent.items())
    roots = enumerate(found.roots)
    offsets = {root: where[i] for i, root in roots if i not in lent}
    hosted = {found.roots[i]: at for i, at in lent.items() if i < len(found.roots)}
    placed = {
        name: [(size, -1 if at is None else where[at], own) for size, at, own in rows]
        for name, rows in found.asked.items()
        if rows
    }
    layout = Layout(offsets, found.over, ways.served, placed, found.host, hosted)
    ops = flat.program.ops
    busiest = ops[found.busiest()] if ops else None
    made = flat, order, plan, layout, nbytes, relieved, len(lent), busiest
    return Schedule(*made, passed.joined)
