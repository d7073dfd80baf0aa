"""The same operators elsewhere: the layers of a model are found once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memplan.chunking.region import Region
from memplan.graph.program import Op, Program, Ref


def elsewhere(program: Program, region: Region) -> Iterator[Region]:
    """`region` moved to wherever `program` has the same operators on the same shapes.

    program: the original, without loops. Regions that are found do not overlap with
    `region` nor with one another.
    """
    ops = [op for op in program.ops if isinstance(op, Op)]
    place = {op.name: i for i, op in enumerate(ops)}
    positions = [place[name] for name in region.slices if name in place]
    if len(positions) != len(region.slices):
        return
    first, last = min(positions), max(positions)
    count = last - first + 1
    marks = [_mark(program, op) for op in ops]
    pattern = [_shape_of(ops, place, marks, first, first + i) for i in range(count)]
    at = 0
    while at + count <= len(ops):
        overlaps = at + count > first and at <= last
        same = marks[at] == marks[first] and not overlaps
        if same and all(
            _shape_of(ops, place, marks, at, at + i) == pattern[i] for i in range(count)
        ):
            yield _moved(region, ops, place, at - first)
            at += count
        else:
            at += 1


def _moved(region: Region, ops: list[Op], place: dict[str, int], by: int) -> Region:
    names: dict[str, str] = {name: ops[place[name] + by].name for name in region.slices}
    return replace(
        region,
        slices={names[name]: piece for name, piece in region.slices.items()},
        copied=frozenset(names[name] for name in region.copied),
        inner=tuple(_renamed(each, names) for each in region.inner),
    )


def _renamed(region: Region, names: dict[str, str]) -> Region:
    """An inner region whose members are called after other operators."""

    def new(name: str) -> str:
        outer = name.removesuffix("_i")
        return f"{names.get(outer, outer)}_i"

    inside = {name: new(name) for name in region.slices}
    return replace(
        region,
        slices={inside[name]: piece for name, piece in region.slices.items()},
        copied=frozenset(inside[name] for name in region.copied),
        inner=tuple(_renamed(each, inside) for each in region.inner),
    )


def _mark(program: Program, op: Op) -> Any:
    """What an operator does, whatever its operands are called."""
    metas = tuple(program.metas[name] for name in op.operands())
    return op.target, repr(_plain((op.args, op.kwargs))), metas, program.metas[op.name]


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return "•"
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _shape_of(
    ops: list[Op], place: dict[str, int], marks: list[Any], first: int, i: int
) -> Any:
    """An operator's mark, and which of the operators from `first` on it takes."""
    inside = [
        at - first if (at := place.get(name, -1)) >= first else None
        for name in ops[i].operands()
    ]
    return marks[i], inside
