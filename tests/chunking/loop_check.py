"""Builds the loops of a random program, and compares each with the program itself."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from memplan.chunking.candidates import (
    Candidate,
    Landscape,
    ends,
    sweep,
    weigh,
)
from memplan.chunking.canonical import rejoined
from memplan.chunking.code import compiled, source
from memplan.chunking.extensions import extended
from memplan.chunking.far import far
from memplan.chunking.inward import inward
from memplan.chunking.region import NotLoopableError, Region, RegionError, chunked
from memplan.chunking.rules.flow import RULES
from memplan.graph.check import relative_error, tolerance_of
from memplan.graph.infer import Inference
from memplan.graph.program import Loop, Op, Program, placed
from tests.chunking.random_programs import Writer, evaluated

ROUNDINGS = 20  # of each operator's result, for differences that a comparison enlarges
RUNS = 8  # with other roundings
ONWARD = 0.3  # how often one more loop is made in a program with a loop
ALL = sys.maxsize


@dataclass
class Tally:
    """What was compared.

    loops: programs with one more loop that were compared. inside: those of them with
    loops in loops. placed: of those, where the inner loop writes what the outer one
    keeps. keys: operators that ran in them. undecided: differences that the
    program itself makes of roundings. not_loopable: regions that were offered and
    cannot be built, by reason. wrong: what differs, or cannot be built or run.
    """

    loops: int = 0
    inside: int = 0
    placed: int = 0
    taken: int = 0
    keys: set[str] = field(default_factory=set)
    undecided: int = 0
    not_loopable: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Checked:
    """A program, its results, and the loops of it that are compared."""

    def __init__(self, writer: Writer, inference: Inference, tally: Tally) -> None:
        self._writer, self._inference, self._tally = writer, inference, tally
        self.program = writer.program
        self.names = [ref.name for ref in self.program.outputs]
        self._expected = [writer.values[name] for name in self.names]
        self._rounding: float | None = None

    def check(self, random: Random, most: int = ALL) -> None:
        """Compare a loop with each sample, and others up to so many in all; by default,
        all that the search could choose."""
        if self.program.outputs:
            self._compare(self.program, "without loops")
        offered = list(self._regions(self.program))
        random.shuffle(offered)
        left = set(self._writer.sampled)
        others = []
        for region in offered:
            if left.isdisjoint(region.slices):
                others.append(region)
            elif self._loop(region, random):
                left -= region.slices.keys()
                most -= 1
        for region in others:
            if most <= 0:
                break
            most -= self._loop(region, random)

    def _loop(self, region: Region, random: Random) -> int:
        """Compare a loop, and at times another in it or beside it; the number
        compared."""
        made = self._built(self.program, region)
        if made is None:
            return 0
        members = [op for op in self.program.ops if op.name in region.slices]
        self._tally.keys.update(op.key for op in members if isinstance(op, Op))
        self._compare(made, f"{region}")
        taken = self._taken(made, region, random)
        more = random.random() < ONWARD
        return 1 + taken + (self._onward(made, region, random) if more else 0)

    def _taken(self, program: Program, region: Region, random: Random) -> int:
        """Compare the loop where it computes more itself, and with a loop in that; the
        number compared."""
        loop = next(each for each in program.ops if isinstance(each, Loop))
        compared = 0
        for whole in itertools.islice(inward(program, loop, 1), 1):
            more = replace(region, whole=whole)
            made = self._built(self.program, more)
            if made is None:
                continue
            self._compare(made, f"{more}")
            compared += 1
            body = next(each for each in made.ops if isinstance(each, Loop)).body
            takes = {f"{name}_i" for name in whole}
            rows = [each for each in self._regions(body) if takes & each.slices.keys()]
            if rows:
                deeper = replace(more, inner=(random.choice(rows),))
                made = self._built(self.program, deeper)
                if made is not None:
                    self._compare(made, f"{deeper}")
                    compared += 1
                    self._tally.inside += 1
        self._tally.taken += compared
        return compared

    def _onward(self, program: Program, region: Region, random: Random) -> int:
        """Compare a loop within the loop, or beside it; the number compared."""
        within = random.random() < 0.6
        loop = next(each for each in program.ops if isinstance(each, Loop))
        offered = list(self._regions(loop.body if within else program))
        if not offered:
            return 0
        other = random.choice(offered)
        if within:
            other = replace(region, inner=(other,))
        made = self._built(self.program if within else program, other)
        if made is None:
            return 0
        self._tally.inside += within
        self._compare(made, f"{region} then {other}")
        return 1

    def _regions(self, program: Program) -> Iterator[Region]:
        """All that the search could choose from, in several steps."""
        errors = Counter[str]()
        land = Landscape(program, errors)
        for one in _candidates(land):
            for step in steps(one):
                region = Region(
                    one.slices, one.extent, step, one.copied, granule=one.granule
                )
                yield replace(region, slides=bool(step % 2))
        self._tally.wrong += [f"rule: {error}" for error in errors]

    def _built(self, program: Program, region: Region) -> Program | None:
        try:
            return chunked(program, region, self._inference)
        except RegionError as error:
            self._tally.wrong.append(f"internal error: {error} for {region}")
        except NotLoopableError as error:
            self._tally.not_loopable[_kind(str(error))] += 1
        return None

    def _compare(self, program: Program, what: str) -> None:
        text = source(rejoined(program), "random")
        inputs = [self._writer.given[name].clone() for name in program.inputs]
        before = [each.clone() for each in inputs]
        try:
            results = compiled(text, "random")(inputs, self._writer.given)
        except (RuntimeError, IndexError, TypeError, NameError) as error:
            self._tally.wrong.append(f"does not run: {error}\n{what}\n{text}")
            return
        self._tally.loops += what != "without loops"
        loops = [step for step in program.ops if isinstance(step, Loop)]
        self._tally.placed += any(placed(loop.body) for loop in loops)
        said = self._difference(list(results), program)
        if any(relative_error(*pair) for pair in zip(before, inputs, strict=True)):
            said = "an input is written to"
        if said:
            self._tally.wrong.append(f"{said}\n{what}\n{text}")

    def _difference(self, found: list[Any], program: Program) -> str:
        error = relative_error(self._expected, found)
        if error > self._tolerance():
            if error <= ROUNDINGS * self._rounded():
                self._tally.undecided += 1
                return ""
            return f"differs by {error:.1e}, rounded by {self._rounded():.1e}"
        if self._moves() and not all(map(_same_signs, self._expected, found)):
            return "a zero has another sign"
        return ""

    def _tolerance(self) -> float:
        return max(tolerance_of(value) for value in self._writer.values.values())

    def _moves(self) -> bool:
        """Whether no operator adds numbers up, whose sum may be 0 of either sign."""
        rules = (RULES.get(op.key) for op in self.program.ops if isinstance(op, Op))
        return all(rule and rule.__name__ in _EXACT for rule in rules)

    def _rounded(self) -> float:
        """By how much results differ if those of operators do in their last bits."""
        if self._rounding is None:
            eps = self._tolerance() / 20
            with torch.random.fork_rng():
                torch.manual_seed(0)
                runs = (
                    evaluated(self.program, self._writer.given, eps)
                    for _ in range(RUNS)
                )
                self._rounding = max(
                    relative_error(self._expected, [run[name] for name in self.names])
                    for run in runs
                )
        return self._rounding


_EXACT = {"elementwise", "where", "permute", "transpose", "reshape", "sliced", "cat"}


def _same_signs(one: Any, other: Any) -> bool:
    if not one.is_floating_point():
        return True
    zero = (one == 0) & (other == 0)
    return torch.equal(one.signbit() & zero, other.signbit() & zero)


def _kind(message: str) -> str:
    """A message without the names of values, which begin it."""
    return " ".join(word for word in message.split() if not re.match(r"[vwx]\d", word))


def _candidates(land: Landscape) -> Iterator[Candidate]:
    for last, dim in ends(land, 0, len(land.program.ops)):
        for copies in (False, True):
            for one in sweep(land, last, dim, 0, copies):
                yield one
                wider = extended(land, one, weigh(land, one), 1)
                if wider is not None:
                    yield wider[0]
    for at, op in enumerate(land.program.ops):
        if isinstance(op, Op):
            yield from (one for one, _ in far(land, at, 0) if one.first == at)


def steps(one: Candidate) -> list[int]:
    """The finest, two that do not divide the extent, half, and all but the finest."""
    unit, extent = one.granule, one.extent
    half = -(-extent // (2 * unit)) * unit
    most = (extent - 1) // unit * unit
    tried = {unit, 2 * unit, 3 * unit, half, most}
    return sorted(step for step in tried if 0 < step < extent)
