"""Loops that write a result over what they read, where iterations read beyond it.

A convolution reads rows above and below those that it makes. In place of its input, it
would write over rows that the next iteration reads; so a loop that does keeps as many
rows as that is, as line buffers in hardware do. A map is then needed once, not twice.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from memplan.chunking.buffers import dense_strides, fits
from memplan.chunking.inferred import infer_again
from memplan.graph.infer import Inference
from memplan.graph.liveness import lifetimes, roots_of
from memplan.graph.program import (
    Bound,
    Input,
    Loop,
    Meta,
    Op,
    Output,
    Program,
    Ref,
    Total,
    results,
    unused,
)

if TYPE_CHECKING:
    import torch


def slide(program: Program, loop: Loop, inference: Inference) -> None:
    """Let a loop read only what follows the place of a result that could then be
    written over it, and keep what comes before that place."""
    for root, output in slidable(program, loop):
        _keep(program, loop, root, output, inference)


def slidable(program: Program, loop: Loop) -> list[tuple[str, Output]]:
    """The storages that results of a loop can be written over as `slide` does.

    Each holds a value that dies there, row-major and of the result's shape, of which
    iterations read what they write with more around it. None for those that can be
    written over a value as it is.
    """
    lives: tuple[dict[str, int], dict[str, int]] | None = None
    found: dict[str, Output] = {}
    for output in loop.outputs:
        near = [each for each in loop.inputs if _around(each, output)]
        if not output.owned or not _kept(near):
            continue
        lives = lives or lifetimes(program)
        roots = [
            program.roots[each.outer]
            for each in near
            if fits(program, loop, each.outer, output, *lives)
        ]
        rows = {root: _rows(program, loop, root, output) for root in roots}
        if 0 not in rows.values():
            able = (root for root in roots if rows[root] and root not in found)
            found.update((root, output) for root in itertools.islice(able, 1))
    return list(found.items())


def _rows(program: Program, loop: Loop, root: str, output: Output) -> int | None:
    """How many rows before those that it writes an iteration reads of a storage; None
    if it cannot keep them, or reads others."""
    entries = _entries(program, loop, root)
    rows = _kept(entries)
    if (
        len({entry.outer for entry in entries}) == 1
        and all(_around(entry, output) for entry in entries)
        and program.metas[entries[0].outer].contiguous
        and rows <= loop.step * output.window.ratio
        and not any(root in roots_of(program, name) for name in loop.wholes())
        and _first(loop, entries) <= _made_at(loop, output)
    ):
        return rows
    return None


def around(before: torch.Tensor, x: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    """x behind what it follows: the end of `before`, from `start` on."""
    import torch

    return torch.cat([before.narrow(dim, start, before.size(dim) - start), x], dim)


def _keep(
    program: Program, loop: Loop, root: str, output: Output, inference: Inference
) -> None:
    """Read a storage only from where `output` is written; keep what is before that.

    It is a total that each iteration replaces; in the first one, none of it counts.
    """
    import torch

    aten = torch.ops.aten
    body, dim, plain = loop.body, output.dim, output.window
    entries = _entries(program, loop, root)
    source, rows = entries[0].outer, _kept(entries)
    after = max(0, *(entry.window.after for entry in entries))
    wide, ahead = plain._replace(before=rows, after=after), plain._replace(after=after)
    names = (f"{source}_{word}" for word in ("edge", "ahead", "around", "last", "kept"))
    edge, cut, whole, last, kept = (unused(name, program, body) for name in names)
    whole = next((each.inner for each in entries if each.window == wide), whole)

    meta: Meta = program.metas[source]
    low, high = ahead.at(body.ranges)
    body.metas[cut], body.roots[cut] = meta.cut(dim, high - low), root
    shape = meta.cut(dim, rows).shape
    strides = dense_strides(shape, tuple(range(len(shape))))
    for holder in (body, program):
        holder.metas[edge] = meta._replace(shape=shape, strides=strides)
        holder.roots[edge] = edge

    first = _first(loop, entries)
    line = body.ops[first].line
    end = Bound(plain, 0, 1, base=wide)  # where what is written ends
    part = (Ref(whole), dim, end._replace(constant=-rows), end)
    layout = {"memory_format": torch.contiguous_format}
    start = Bound(wide, 1, 0, rows, base=plain)
    made = [
        Op(whole, around, (Ref(edge), Ref(cut), dim, start), {}, line),
        Op(last, aten.slice.Tensor, part, {}, line),
        Op(kept, aten.clone.default, (Ref(last),), layout, line),
    ]
    moving = {cut: ahead, whole: wide}
    for each in entries:
        if each.window != wide:
            ends = (Bound(each.window, *at, base=wide) for at in ((1, 0), (0, 1)))
            taken = (Ref(whole), dim, *ends)
            made.append(Op(each.inner, aten.slice.Tensor, taken, {}, line))
            moving[each.inner] = each.window
    for op in made:
        inference.add(body, op)
    if others := program.moving.get(source, {}):
        program.moving[edge] = others
        body.moving.update(dict.fromkeys((edge, last, kept), others))
    body.moving.update((name, {**others, dim: each}) for name, each in moving.items())
    body.ops[first:first] = made
    body.totals[edge] = kept
    body.outputs = (*body.outputs, Ref(kept))
    loop.totals.append(Total(kept, edge, 0, dim))
    loop.inputs[:] = [each for each in loop.inputs if each not in entries]
    loop.inputs.append(Input(cut, source, dim, ahead))
    changed = {each.inner for each in entries}
    infer_again(body, first + len(made), changed, inference)


def _entries(program: Program, loop: Loop, root: str) -> list[Input]:
    return [each for each in loop.inputs if root in roots_of(program, each.outer)]


def _around(entry: Input, output: Output) -> bool:
    """Whether a window is what is written with something before and after it."""
    core = entry.window._replace(before=0, after=0)
    return (entry.dim, core) == (output.dim, output.window)


def _kept(entries: list[Input]) -> int:
    """How many rows before those that it writes an iteration reads."""
    return max((entry.window.before for entry in entries), default=0)


def _first(loop: Loop, entries: list[Input]) -> int:
    """The position in the body that first reads one of the entries."""
    names = {entry.inner for entry in entries}
    ops = loop.body.ops
    return next(i for i, op in enumerate(ops) if not names.isdisjoint(op.operands()))


def _made_at(loop: Loop, output: Output) -> int:
    ops = loop.body.ops
    return next(i for i, step in enumerate(ops) if output.inner in results(step))
