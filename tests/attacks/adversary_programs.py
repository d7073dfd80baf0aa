"""Random programs of tensors, and the traces that plans for other programs are made of.

A program is a list of turns: a thread, and what it does before the next thread's turn,
so that a program of several threads is the same each time that it runs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from memplan.core.plan import Program
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo

KIB, MIB = 1 << 10, 1 << 20
MOST_LIVE = 96 * MIB  # of one program
MOST_TOUCHED = 320 * MIB  # by one program, all its blocks together

# ("ask", number, bytes), ("free", number, 0) or ("step", 0, 0)
Deed = tuple[Literal["ask", "free", "step"], int, int]


@dataclass(frozen=True)
class Turn:
    """What one thread does until it is another's turn."""

    thread: int
    deeds: tuple[Deed, ...]


@dataclass(frozen=True)
class Shape:
    """A request of a step's template: bytes, and how many requests of its thread later
    it is freed; grows: with the steps; leaks: now and then it is never freed."""

    size: int
    after: int
    grows: bool
    leaks: bool


@dataclass(frozen=True)
class Manner:
    """How a program's steps differ from each other."""

    threads: int
    kinds: int
    steps: int
    growth: Literal["none", "slow", "doubling", "free"]
    leaks: bool
    turns_to: bool  # half-way, to steps of quite another kind
    marks: Literal["all threads", "the first", "none"]

    @property
    def name(self) -> str:
        """For messages."""
        return (
            f"{self.threads} threads, {self.kinds} kinds, {self.steps} steps, growth "
            f"{self.growth}, leaks {self.leaks}, turns {self.turns_to}, marks by "
            f"{self.marks}"
        )


def manner(rng: random.Random) -> Manner:
    """One of many, drawn at random."""
    return Manner(
        threads=rng.choice((1, 1, 1, 2, 3, 4)),
        kinds=rng.choice((1, 1, 2, 3, 5)),
        steps=rng.randint(8, 24),
        growth=rng.choice(("none", "none", "slow", "doubling", "free")),
        leaks=rng.random() < 0.25,
        turns_to=rng.random() < 0.2,
        marks=rng.choice(("all threads", "all threads", "the first", "none")),
    )


def template(rng: random.Random, how: Manner) -> list[Shape]:
    """One kind of step: sizes over four orders of magnitude, lives short and long."""
    count = rng.randint(3, 24)
    scale = rng.choice((4 * KIB, 256 * KIB, MIB, 4 * MIB))
    return [
        Shape(
            size=max(1, round(scale * 2 ** rng.uniform(-6, 1))),
            after=rng.choice((0, 1, 2, count // 2, count, 2 * count)),
            grows=rng.random() < 0.4,
            leaks=how.leaks and rng.random() < 0.05,
        )
        for _ in range(count)
    ]


def grown(size: int, how: Manner, step: int, factor: float) -> int:
    """The bytes of a request that grows, in the step with this number."""
    factors = {
        "none": 1.0,
        "slow": 1 + step / 8,
        "doubling": 2 ** (4 * step / how.steps),
        "free": factor,
    }
    return max(1, round(size * factors[how.growth]))


class _Thread:
    """What one thread does, step after step."""

    def __init__(self, rng: random.Random, how: Manner, number: int) -> None:
        self._rng, self._how, self._number = rng, how, number
        kinds = [template(rng, how) for _ in range(2 * how.kinds)]
        self._kinds = kinds[: how.kinds], kinds[how.kinds :]
        self._due: defaultdict[int, list[int]] = defaultdict(list)
        self._requests = 0
        self.alive: list[int] = []

    def step(self, step: int, names: Names) -> list[Deed]:
        """The next step's deeds, its mark first."""
        how, rng = self._how, self._rng
        deeds: list[Deed] = []
        if how.marks == "all threads" or (
            how.marks == "the first" and self._number == 0
        ):
            deeds.append(("step", 0, 0))
        later = how.turns_to and 2 * step >= how.steps
        # The first kind is the most frequent: the others are evaluations and the like.
        kind = 0 if rng.random() < 0.7 else rng.randrange(how.kinds)
        factor = rng.uniform(0.3, 2.0)
        for shape in self._kinds[later][kind]:
            for name in self._due.pop(self._requests, ()):
                deeds.append(("free", name, 0))
                self.alive.remove(name)
                names.freed(name)
            size = grown(shape.size, how, step, factor) if shape.grows else shape.size
            asked = names.ask(size)
            if asked is None:
                continue
            deeds.append(("ask", asked, size))
            self._requests += 1
            if shape.leaks and rng.random() < 0.3:
                continue
            self.alive.append(asked)
            self._due[self._requests + shape.after].append(asked)
        return deeds


class Names:
    """Numbers of blocks, and what all threads hold together."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._next = self._live = self._touched = 0

    def ask(self, size: int) -> int | None:
        """A new block's number; None where the program has enough."""
        if self._live + size > MOST_LIVE or self._touched + size > MOST_TOUCHED:
            return None
        self._live += size
        self._touched += size
        self._next += 1
        self._sizes[self._next] = size
        return self._next

    def freed(self, name: int) -> None:
        """That block is no more."""
        self._live -= self._sizes[name]


def program(seed: int) -> tuple[Manner, list[Turn]]:
    """A random program, the same for the same seed; all is freed but what leaks."""
    rng = random.Random(seed)
    how, names = manner(rng), Names()
    threads = [_Thread(rng, how, number) for number in range(how.threads)]
    turns: list[Turn] = []
    for step in range(how.steps):
        waiting = [thread.step(step, names) for thread in threads]
        while any(waiting):
            number = rng.choice([i for i, deeds in enumerate(waiting) if deeds])
            count = rng.randint(4, 40) if how.threads > 1 else len(waiting[number])
            turns.append(Turn(number, tuple(waiting[number][:count])))
            del waiting[number][:count]
    for number, thread in enumerate(threads):
        turns.append(Turn(number, tuple(("free", name, 0) for name in thread.alive)))
    return how, turns


def trace_of(turns: list[Turn]) -> Trace:
    """What recording the program gives."""
    sizes: dict[int, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    marked = False
    for turn in turns:
        for deed, name, size in turn.deeds:
            if deed == "step":
                rows.append((Action.STEP, Mark.EXPLICIT, 0, 0, turn.thread + 1))
                marked = True
                continue
            sizes.setdefault(name, size)
            action = Action.ALLOC if deed == "ask" else Action.FREE_COMPLETED
            rows.append((action, Mark.NONE, name, sizes[name], turn.thread + 1))
    action, mark, address, size, thread = zip(*rows, strict=True)
    events = Columns.of(
        time_ns=range(len(rows)),
        action=action,
        mark=mark,
        address=address,
        size=size,
        requested_size=size,
        thread=thread,
    )
    made = Program(script="adversary.py", marks="explicit" if marked else "none")
    return Trace(events, info=TraceInfo(program=made, alignment=64))
