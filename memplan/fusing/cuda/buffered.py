"""Sequences of several pools: blocks that each make a patch in shared memory.

A block reads what its patch needs of the input, with borders that blocks beside it
read, too; then pool after pool goes from one of two buffers into the other, with a
barrier between (4.4). Around a plane lies what does not count for the next pool, so
that windows need no bounds. A thread makes some outputs one below the other and takes
each row of their windows once.

Each of these phases is a function in the source, and steps that are alike share one:
to compile forty of them takes hardly longer than to compile three.
"""

from __future__ import annotations

from typing import NamedTuple

from memplan.fusing.cuda.kernel import Kernel
from memplan.fusing.cuda.phases import Phases
from memplan.fusing.cuda.pieces import Pieces, indented
from memplan.fusing.cuda.planes import buffers


class _Called(NamedTuple):
    """The functions of all phases, and the calls of them, in order."""

    functions: str
    calls: list[str]


def emit_buffered(pieces: Pieces) -> Kernel:
    """A kernel of a block for each patch of a plane; channels last, of up to 32."""
    out, lanes = pieces.planes[-1], pieces.form.lanes
    one, other = (points * lanes for points in buffers(pieces.planes))
    down, across = -(-out.height // out.made), -(-out.width // out.columns)
    called = _called(Phases(pieces, one))
    calls = "    BARRIER;\n".join(called.calls)
    body = f"""\
    int block = blockIdx.x;
{_patch(pieces, 1, "xs", across)}\
{_patch(pieces, 0, "ys", down)}\
    const int groups = (channels + GROUP - 1) / GROUP;
    const int first = block % groups * GROUP, n = block / groups;
{calls}}}
"""
    source = f"{pieces.head}\n{called.functions}{pieces.signature} {{\n{body}"
    return Kernel(
        source,
        pieces.out,
        pieces.operands,
        items=down * across,
        group=lanes,
        shared=4 * (one + other),
    )


def _called(phases: Phases) -> _Called:
    names: dict[str, str] = {}  # of each text from the parameters on
    calls = []
    for phase in phases.all():
        name = names.setdefault(phase.text, f"phase{len(names)}")
        calls.append(f"    {name}({', '.join(phase.arguments)});\n")
    functions = "".join(f"PHASE void {name}{text}\n" for text, name in names.items())
    return _Called(functions, calls)


def _patch(pieces: Pieces, axis: int, name: str, patches: int) -> str:
    """The rows (ys0 of the input, ys1 …) or columns (xs0 …) that the block makes of
    each plane; nothing, if it makes all of them."""
    if patches == 1:
        return ""
    out, number = pieces.planes[-1], len(pieces.pools)
    made, size = ((out.made, out.height), (out.columns, out.width))[axis]
    start = f"block % {patches} * {made}"
    lines = [f"const Span {name}{number} = patch({start}, {made}, {size});"]
    lines.append(f"block /= {patches};")
    for number, pool in reversed(list(enumerate(pieces.pools))):
        plane = pieces.planes[number]
        size = (plane.height, plane.width)[axis]
        numbers = f"{pool.stride[axis]}, {pool.padding[axis]}, {pool.reach(axis)}"
        after = f"{name}{number + 1}"
        lines.append(f"const Span {name}{number} = needed({after}, {numbers}, {size});")
    return indented("\n".join(lines), 4) + "\n"
