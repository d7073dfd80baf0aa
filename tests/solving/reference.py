"""The same heuristics as `bestfit` and `greedy`, in plain Python and quadratic time.

To be read beside the paper, and to hold the fast versions against: they give the same
offsets. No code is shared with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from memplan.core.bounds import lower_bound
from memplan.core.problem import FREE, Problem


@dataclass(frozen=True)
class Block:
    """Buffer `index`: [start, start + lifetime) in ticks, size and alignment in bytes.

    start is not negative, and below the period on a periodic clock.
    """

    index: int
    start: int
    lifetime: int
    size: int
    alignment: int


@dataclass(frozen=True)
class Line:
    """An offset line: `height` bytes during [left, right), in ticks.

    On a circle, left is below the period, and right may exceed it.
    """

    left: int
    right: int
    height: int


def best_fit(problem: Problem) -> list[int]:
    """Offsets in bytes; the same as `memplan.solving.bestfit.best_fit`."""
    if any(offset != FREE for offset in problem.fixed.tolist()):
        return fill_gaps(problem)
    if not len(problem):
        return []
    period = problem.length
    blocks = _blocks(problem)
    if period is not None:
        moment = _quietest_moment(blocks, period)
        blocks = [_seen_from(moment, block, period) for block in blocks]
        pile = [block for block in blocks if block.start + block.lifetime > period]
        if pile:
            return _around(problem, blocks, pile, period)
    left = min(block.start for block in blocks)
    right = max(block.start + block.lifetime for block in blocks)
    return _in_order(decode(blocks, [Line(left, right, 0)]))


def _around(
    problem: Problem, blocks: list[Block], pile: list[Block], period: int
) -> list[int]:
    circle = decode(blocks, [Line(0, period, 0)], period)
    peak = problem.peak(np.array(_in_order(circle)))
    if peak == lower_bound(problem):
        return _in_order(circle)
    piled = _pile_up(pile)
    rest = [block for block in blocks if block not in pile]
    piled |= decode(rest, _ground(pile, piled, period))
    if problem.peak(np.array(_in_order(piled))) < peak:
        return _in_order(piled)
    return _in_order(circle)


def decode(
    blocks: list[Block], skyline: list[Line], period: int | None = None
) -> dict[int, int]:
    """Best fit (section 3.2) above a skyline: the offset of each block, by index.

    blocks: in order of priority. skyline: lines side by side, from left to right; with
    a `period` they close to a circle, and one line alone has no ends.
    """
    lines, waiting = list(skyline), list(blocks)
    offsets: dict[int, int] = {}
    while waiting:
        # Choose an offset: the lowest line, the leftmost among equals.
        line = min(lines, key=lambda line: (line.height, line.left))
        if period is not None and len(lines) == 1:
            # A whole circle begins wherever the first block does.
            left = waiting[0].start
            line = Line(left, left + period, line.height)
            lines = [line]
        for block in waiting:  # the longest lifetime first
            start = block.start
            if period is not None and start < line.left:
                start += period
            if line.left <= start and start + block.lifetime <= line.right:
                break
        else:
            lines = _lifted(lines, line, period)
            continue
        waiting.remove(block)
        offset = _rounded_up(line.height, block.alignment)
        offsets[block.index] = offset
        end = start + block.lifetime
        pieces = [
            Line(line.left, start, line.height),
            Line(start, end, offset + block.size),
            Line(end, line.right, line.height),
        ]
        lines.remove(line)
        lines += [_turned(p, period) for p in pieces if p.left < p.right]
        lines.sort(key=lambda line: line.left)
    return offsets


def _lifted(lines: list[Line], line: Line, period: int | None) -> list[Line]:
    """The lines after merging one with its lowest neighbour, or both if equally low."""
    here, count, circle = lines.index(line), len(lines), period is not None
    before = lines[here - 1] if here > 0 or circle else None
    after = lines[(here + 1) % count] if here + 1 < count or circle else None
    lowest = min(side.height for side in (before, after) if side is not None)
    left, right, merged = line.left, line.right, [line]
    if before is not None and before.height == lowest:
        left -= before.right - before.left
        merged.append(before)
    # Of two lines on a circle, one is both neighbours of the other.
    if after is not None and after.height == lowest and after not in merged:
        right += after.right - after.left
        merged.append(after)
    others = [other for other in lines if other not in merged]
    both = [*others, _turned(Line(left, right, lowest), period)]
    return sorted(both, key=lambda line: line.left)


def _turned(line: Line, period: int | None) -> Line:
    """The same line, beginning within the period."""
    if period is None:
        return line
    turns = line.left // period * period
    return Line(line.left - turns, line.right - turns, line.height)


def _pile_up(pile: list[Block]) -> dict[int, int]:
    """Offsets one above the other from 0, in order."""
    offsets: dict[int, int] = {}
    top = 0
    for block in pile:
        offsets[block.index] = _rounded_up(top, block.alignment)
        top = offsets[block.index] + block.size
    return offsets


def _ground(pile: list[Block], offsets: dict[int, int], period: int) -> list[Line]:
    """The skyline that a pile across 0 leaves in [0, period)."""
    reaches = [block.start + block.lifetime - period for block in pile]
    times = sorted({0, period, *reaches, *(block.start for block in pile)})
    lines: list[Line] = []
    for left, right in pairwise(times):
        height = max(
            (
                offsets[block.index] + block.size
                for block, reach in zip(pile, reaches, strict=True)
                if left < reach or block.start <= left
            ),
            default=0,
        )
        if lines and lines[-1].height == height:
            lines[-1] = replace(lines[-1], right=right)
        else:
            lines.append(Line(left, right, height))
    return lines


def fill_gaps(
    problem: Problem, capacity: int | None = None, order: str = "lifetime"
) -> list[int]:
    """Offsets in bytes, -1 for what does not fit: as `greedy.place_around` does it."""
    period = problem.length
    offsets: list[int] = problem.fixed.tolist()
    sizes = problem.size.tolist()
    blocks = _blocks(problem)
    placed = [block for block in blocks if offsets[block.index] != FREE]
    if order == "size":
        blocks.sort(key=lambda block: (-block.size, -block.lifetime, block.index))
    for block in blocks:
        if offsets[block.index] != FREE:
            continue
        offset, size = 0, sizes[block.index]
        taken = [
            (offsets[other.index], offsets[other.index] + sizes[other.index])
            for other in placed
            if _meet(block, other, period)
        ]
        for begin, top in sorted(taken):
            if offset + size <= begin:
                break
            offset = max(offset, _rounded_up(top, block.alignment))
        if capacity is None or offset + size <= capacity:
            offsets[block.index] = offset
            placed.append(block)
    return offsets


def _meet(one: Block, other: Block, period: int | None) -> bool:
    """Whether both are alive at some time."""
    gap = other.start - one.start
    if period is None:
        return -other.lifetime < gap < one.lifetime
    return gap % period < one.lifetime or -gap % period < other.lifetime


def _blocks(problem: Problem) -> list[Block]:
    """The buffers, longest lifetime first, then largest, then first; sizes padded."""
    blocks = []
    rows = zip(
        problem.lower.tolist(),
        problem.upper.tolist(),
        problem.padded.tolist(),
        problem.alignment.tolist(),
        strict=True,
    )
    for index, (lower, upper, size, alignment) in enumerate(rows):
        lifetime = upper - lower
        if lower > upper:
            lifetime += problem.length or 0
        blocks.append(Block(index, lower, lifetime, size, alignment))
    return sorted(blocks, key=lambda b: (-b.lifetime, -b.size, b.index))


def _quietest_moment(blocks: list[Block], period: int) -> int:
    """The earliest moment that the fewest bytes are alive across."""
    births = {block.start for block in blocks}
    deaths = {(block.start + block.lifetime) % period for block in blocks}
    return min(
        sorted({0} | births | deaths),
        key=lambda moment: sum(
            block.size
            for block in blocks
            if (block.start - moment) % period + block.lifetime > period
        ),
    )


def _seen_from(moment: int, block: Block, period: int) -> Block:
    """The block on a clock that shows 0 at `moment`."""
    return replace(block, start=(block.start - moment) % period)


def _rounded_up(height: int, alignment: int) -> int:
    return -(-height // alignment) * alignment


def _in_order(offsets: dict[int, int]) -> list[int]:
    return [offset for _, offset in sorted(offsets.items())]
