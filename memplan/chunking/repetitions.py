"""Where a program repeats what a region covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memplan.chunking.region import Region, inner_name
from memplan.graph.program import Op, Program, Ref, mapped


def elsewhere(program: Program, region: Region) -> Iterator[Region]:
    """`region` moved to each repetition of its operators, on the same shapes.

    program: the original, without loops. The regions do not overlap `region` or each
    other.
    """
    ops = [op for op in program.ops if isinstance(op, Op)]
    place = {op.name: i for i, op in enumerate(ops)}
    members = region.slices.keys() | region.whole
    positions = [place[name] for name in members if name in place]
    if len(positions) != len(members):
        return
    first, last = min(positions), max(positions)
    count = last - first + 1
    marks = [_op_mark(program, op) for op in ops]
    pattern = [_shape_of(ops, place, marks, first, first + i) for i in range(count)]
    at = 0
    while at + count <= len(ops):
        overlaps = at + count > first and at <= last
        same = marks[at] == marks[first] and not overlaps
        if same and all(
            _shape_of(ops, place, marks, at, at + i) == pattern[i] for i in range(count)
        ):
            by = at - first
            moved = {name: ops[place[name] + by].name for name in members}
            yield _renamed(region, moved)
            at += count
        else:
            at += 1


def _renamed(region: Region, names: Mapping[str, str]) -> Region:
    """The region with renamed members; those that only its body has keep theirs."""
    inside = {inner_name(old): inner_name(new) for old, new in names.items()}
    return replace(
        region,
        slices={names.get(old, old): piece for old, piece in region.slices.items()},
        copied=frozenset(names.get(old, old) for old in region.copied),
        inner=tuple(_renamed(each, inside) for each in region.inner),
        whole=frozenset(names.get(old, old) for old in region.whole),
    )


Mark = tuple[object, ...]
"""What an operator does and on which shapes, without the names of its operands."""


def _op_mark(program: Program, op: Op) -> Mark:
    """An operator's mark."""
    metas = tuple(program.metas[name] for name in op.operands())
    plain = mapped((op.args, op.kwargs), lambda at: "•" if isinstance(at, Ref) else at)
    return op.target, repr(plain), metas, program.metas[op.name]


def _shape_of(
    ops: list[Op], place: dict[str, int], marks: list[Mark], first: int, i: int
) -> tuple[Mark, list[int | None]]:
    """An operator's mark, and its operands as positions after `first`."""
    inside = [
        at - first if (at := place.get(name, -1)) >= first else None
        for name in ops[i].operands()
    ]
    return marks[i], inside
