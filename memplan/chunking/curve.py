"""Live bytes along a program, including loops, and what makes up its peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from memplan.chunking.plan import Peak
from memplan.chunking.region import inner_name
from memplan.graph.liveness import (
    Beside,
    Bodies,
    Profile,
    held_storages,
    lifetimes,
    one_body,
    owners,
    profile,
)
from memplan.graph.program import Loop, Op, Program
from memplan.graph.workspace import temporaries

SHOWN = 8  # storages at the peak that are listed, the largest


@dataclass(frozen=True)
class Band:
    """Positions [start, stop) of a curve that are a loop's body, run `times` times.

    depth: 0 for a loop that is in no other.
    """

    start: int
    stop: int
    times: int
    depth: int


@dataclass(frozen=True)
class Curve:
    """Live bytes while each operator runs, in order; a loop's body appears once.

    live, operators, lines: of each position, the bytes, the operator's name as in
    ``aten.softmax``, and its `file:line`. bands: the loops, outer ones first.
    """

    live: tuple[int, ...]
    operators: tuple[str, ...]
    lines: tuple[str, ...]
    bands: tuple[Band, ...]

    @property
    def at(self) -> int:
        """The first position of the peak; the curve must not be empty."""
        return self.live.index(max(self.live))


def curve(program: Program) -> Curve:
    """The curve of a program."""
    rows: list[tuple[int, Op]] = []
    bands: list[Band] = []
    # Without loops it is what eager modules do, which write results beside operands.
    overwriting = any(isinstance(step, Loop) for step in program.ops)
    _walk(program, profile(program, overwriting), 0, rows, bands)
    return Curve(
        tuple(live for live, _ in rows),
        tuple(op.key for _, op in rows),
        tuple(op.line for _, op in rows),
        tuple(sorted(bands, key=lambda band: (band.depth, band.start))),
    )


def _walk(
    program: Program,
    found: Profile,
    depth: int,
    rows: list[tuple[int, Op]],
    bands: list[Band],
    outside: int = 0,
) -> None:
    for step, live in zip(program.ops, found.live, strict=True):
        if isinstance(step, Op):
            rows.append((outside + live, step))
            continue
        start = len(rows)
        body = profile(step.body)
        around = outside + live - body.peak
        _walk(step.body, body, depth + 1, rows, bands, around)
        bands.append(Band(start, len(rows), -(-step.extent // step.step), depth))


def at_peak(
    program: Program,
    path: str = "",
    beside: Beside = temporaries,
    overwriting: bool = True,
    bodies: Bodies = one_body,
) -> Peak:
    """Where a program's peak is; path: the program's module in the model.

    beside, overwriting, bodies: see `profile`.
    """
    along = partial(profile, beside=beside, bodies=bodies)
    live: list[tuple[str, int]] = []
    step: Op | Loop | None = None
    while program.ops and not isinstance(step, Op):
        at = along(program, overwriting).at
        step = program.ops[at]
        live += live_at(program, at, overwriting)
        if isinstance(step, Loop):
            program = max(bodies(step), key=lambda each: along(each).peak)
    if not isinstance(step, Op):
        return {}
    largest = sorted(live, key=lambda pair: -pair[1])[:SHOWN]
    return {
        "module": path,
        "operator": step.key,
        "line": step.line,
        "live": [{"name": name, "bytes": count} for name, count in largest],
    }


def live_at(
    program: Program, at: int, overwriting: bool = True
) -> list[tuple[str, int]]:
    """The storages that are live while the step at `at` runs, with their bytes; none
    of a loop's body, and no temporaries."""
    last, owned = held_storages(program) if overwriting else lifetimes(program)
    return [
        (root, owned[root])
        for i, step in enumerate(program.ops[: at + 1])
        for root in owners(program, step)
        if root in owned and last[root] >= at
    ]


def live_within(program: Program, live: Profile) -> Iterator[tuple[str, int]]:
    """The storages that are live at a program's peak, those of the bodies of loops
    there by the names that they have outside."""
    at = live.at
    yield from live_at(program, at)
    step, inner = program.ops[at], live.inner[at]
    if isinstance(step, Loop) and inner is not None:
        for root, size in live_within(step.body, inner):
            yield root.removesuffix(inner_name("")), size
