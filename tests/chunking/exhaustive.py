"""The least peak of a tiny program: all sets of loops, within one another, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

from memplan.chunking.buffers import place_inside
from memplan.chunking.region import (
    NotLoopableError,
    Region,
    call_of,
    chunked,
    loop_name,
)
from memplan.chunking.rules.flow import Flow, Slice
from memplan.chunking.rules.table import flow
from memplan.chunking.sliding import slidable
from memplan.graph.infer import Inference
from memplan.graph.liveness import profile
from memplan.graph.program import Loop, Meta, Op, Program, Step, refs, results

LOOPS = 3  # in a program, or in a body


class TooManyError(Exception):
    """There are more ways than are to be tried."""


class Exhaustive:
    """Tries everything on programs of a few operators.

    tried: programs whose peak was taken.
    """

    def __init__(self, inference: Inference, most: int) -> None:
        """most: raises TooManyError beyond so many programs."""
        self.tried = 0
        self._inference, self._most = inference, most
        self._floors: dict[str, int] = {}  # of programs without loops

    def floor(
        self, program: Program, around: tuple[Program, Loop] | None = None
    ) -> int:
        """The least peak of a program, or of a loop's body, with any loops in it.

        around: the loop that the body is of, and its program. What lies beside an
        operator or a loop becomes less only if a region reaches over it. So one of
        those that are left must reach over the place of the peak.
        """
        key = repr((program.ops, program.outputs, program.metas, program.moving))
        if around is not None:
            whole, loop = around
            places = [(each.inner, whole.roots[each.buffer]) for each in loop.outputs]
            key += repr(places)
        if key not in self._floors:
            self._floors[key] = self._floor(program, frozenset(), {}, set(), around)
        return self._floors[key]

    def _floor(
        self,
        program: Program,
        regions: frozenset[str],
        floors: dict[str, int],
        seen: set[frozenset[str]],
        around: tuple[Program, Loop] | None,
    ) -> int:
        """floors: the least peaks of the bodies of some loops of the program."""
        self.tried += 1
        if self.tried > self._most:
            raise TooManyError
        live = list(profile(program).live)
        for i, step in enumerate(program.ops):
            if step.name in floors:
                live[i] += floors[step.name] - body_peak(step)
        best = max(live, default=0)
        if not live:
            return best
        at = live.index(best)
        loop = program.ops[at]
        if isinstance(loop, Loop) and loop.name not in floors:
            floors = {**floors, loop.name: self.floor(loop.body, (program, loop))}
            return self._floor(program, regions, floors, seen, around)
        for region, made in self._made(program, at) if len(regions) < LOOPS else ():
            more = regions | {mark(region)}
            if more in seen:
                continue
            seen.add(more)
            if around is not None:
                place_inside(around[0], replace(around[1], body=made))
            best = min(best, self._floor(made, more, floors, seen, around))
        return best

    def _made(self, program: Program, at: int) -> Iterator[tuple[Region, Program]]:
        """All regions that reach over the place `at`, and the programs with them."""
        for region in all_regions(program, at):
            try:
                made = chunked(program, region, self._inference)
            except NotLoopableError:
                continue
            yield region, made
            name = loop_name(region)
            (loop,) = (step for step in made.ops if step.name == name)
            assert isinstance(loop, Loop)
            if slidable(made, loop):
                slides = replace(region, slides=True)
                yield slides, chunked(program, slides, self._inference)


def body_peak(step: Step) -> int:
    assert isinstance(step, Loop)
    return profile(step.body).peak


def mark(region: Region) -> str:
    own = sorted(region.slices.items()), region.step, sorted(region.copied)
    return repr((own, region.slides))


def all_regions(program: Program, at: int) -> Iterator[Region]:
    """All regions that reach over the place `at`, in all steps; in a loop, in the
    finest."""
    ops = program.ops
    places = [i for i, step in enumerate(ops) if isinstance(step, Op)]
    for count in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, count):
            if chosen[0] <= at <= chosen[-1]:
                members = [op for i in chosen if isinstance(op := ops[i], Op)]
                between = ops[chosen[0] : chosen[-1]]
                for region in _regions_of(program, members) if _is_one(members) else ():
                    if not _moves(between, members, region):
                        yield region


def _is_one(members: list[Op]) -> bool:
    """Whether each of the operators takes what another makes, or the other way."""
    groups: list[set[str]] = []
    for op in members:
        names = {op.name, *op.operands()}
        names &= {each.name for each in members}
        touched = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names]
        groups.append(names.union(*touched))
    return len(groups) == 1


def _moves(between: Sequence[Step], members: list[Op], region: Region) -> bool:
    """Whether an operator between the members could run before them and behind them:
    where it does is up to another pass."""
    names = set(region.slices)
    behind = names - region.copied
    for step in between:
        if step.name not in names and not behind.isdisjoint(step.operands()):
            behind.update(results(step))
    before = {name for op in members for name in op.operands()}
    for step in reversed(between):
        if step.name not in names and not before.isdisjoint(results(step)):
            before.update(step.operands())
    rest = [step for step in between if step.name not in names]
    return any((behind | before).isdisjoint(results(step)) for step in rest)


def _regions_of(program: Program, members: list[Op]) -> Iterator[Region]:
    """All regions of some operators: for all slices of those that no other takes."""
    names = {op.name for op in members}
    taken = {name for op in members for name in op.operands()}
    ends = [op for op in members if op.name not in taken]
    metas = [program.metas[op.name] for op in ends]
    if not all(isinstance(meta, Meta) for meta in metas):
        return
    outside = _outside(program, names)
    single = {name for name in names if isinstance(program.metas[name], Meta)}
    for dims in itertools.product(*(range(len(meta.shape)) for meta in metas)):
        sizes = [meta.shape[dim] for meta, dim in zip(metas, dims, strict=True)]
        extent = sizes[-1]
        if min(sizes) < 2:
            continue
        slices = {
            op.name: Slice(dim, Fraction(size, extent))
            for op, dim, size in zip(ends, dims, sizes, strict=True)
        }
        found = _spread(program, members, slices)
        if found is None:
            continue
        slices, whole, granule = found
        maybe = sorted((outside | whole) & taken & single)
        for count in range(len(maybe) + 1):
            for copied in itertools.combinations(maybe, count):
                last = granule + 1 if program.ranges else extent  # of loops in loops
                for step in range(granule, last, granule):
                    if whole <= set(copied):
                        kept = frozenset(copied)
                        yield Region(slices, extent, step, kept, granule=granule)


def _outside(program: Program, names: set[str]) -> set[str]:
    """Those of the members that are needed outside of the loop."""
    users = {
        name
        for step in program.ops
        if step.name not in names
        for name in step.operands()
    }
    return names & (users | set(refs(program.outputs)))


def _spread(
    program: Program, members: list[Op], slices: dict[str, Slice]
) -> tuple[dict[str, Slice], set[str], int] | None:
    """The slices of all members, those that a member needs whole, and the granule."""
    found = dict(slices)
    whole: set[str] = set()
    granule = 1
    for op in reversed(members):
        piece = found.get(op.name)
        if piece is None or piece.dim in program.moving.get(op.name, {}):
            return None
        made: Flow | None = flow(call_of(program, op, "loop"), piece)
        if made is None:
            return None
        granule = lcm(granule, piece.ratio.denominator)
        for name, need in zip(op.operands(), made.needs, strict=True):
            if need is None:
                whole.add(name)
                continue
            if need.dim in program.moving.get(name, {}):
                return None
            granule = lcm(granule, need.ratio.denominator)
            if all(name != each.name for each in members):
                continue
            known = found.get(name, need)
            if (known.dim, known.ratio) != (need.dim, need.ratio):
                return None
            before, after = max(known.before, need.before), max(known.after, need.after)
            found[name] = known._replace(before=before, after=after)
    whole &= {op.name for op in members}
    if set(found) != {op.name for op in members}:
        return None
    return {op.name: found[op.name] for op in members}, whole, granule
