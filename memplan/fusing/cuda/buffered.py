"""Sequences of several pools: blocks that each make a patch in shared memory.

A block reads what its patch needs of the input, with borders that blocks beside it
read, too; then pool after pool goes from one of two buffers into the other, with a
barrier between (4.4). Around a plane lies what does not count for the next pool, so
that windows need no bounds. A thread makes some outputs one below the other and takes
each row of their windows once.
"""

from __future__ import annotations

from memplan.fusing.cuda.kernel import Kernel
from memplan.fusing.cuda.pieces import Pieces, indented, kind_of
from memplan.fusing.cuda.planes import buffers


def emit_buffered(pieces: Pieces) -> Kernel:
    """A kernel of a block for each patch of a plane; channels last, of up to 32."""
    out, lanes = pieces.planes[-1], pieces.form.lanes
    one, other = (points * lanes for points in buffers(pieces.planes))
    down, across = -(-out.height // out.made), -(-out.width // out.columns)
    start = f"""\
    extern __shared__ float memory[];
    float* const buffers[2] = {{memory, memory + {one}}};
    int block = blockIdx.x;
    const int left = block % {across} * {out.columns};
    block /= {across};
    const int top = block % {down} * {out.made};
    block /= {down};
    const int groups = (channels + GROUP - 1) / GROUP;
    const int first = block % groups * GROUP, n = block / groups;
{_spans(pieces)}
"""
    phases = [_load(pieces)]
    phases += [_pool(pieces, number) for number in range(1, len(pieces.planes))]
    source = pieces.head + start + "    BARRIER;\n".join(phases) + "}\n"
    return Kernel(
        source,
        pieces.out,
        pieces.operands,
        items=down * across,
        group=lanes,
        shared=4 * (one + other),
    )


def _spans(pieces: Pieces) -> str:
    """Rows and columns of each plane that the block makes: ys0, xs0 of the input …"""
    out, number = pieces.planes[-1], len(pieces.pools)
    lines = [
        f"const Span ys{number} = patch(top, {out.made}, {out.height});",
        f"const Span xs{number} = patch(left, {out.columns}, {out.width});",
    ]
    for number, pool in reversed(list(enumerate(pieces.pools))):
        plane = pieces.planes[number]
        for axis, name, size in ((0, "ys", plane.height), (1, "xs", plane.width)):
            numbers = f"{pool.stride[axis]}, {pool.padding[axis]}, {pool.reach(axis)}"
            lines.append(
                f"const Span {name}{number} = "
                f"needed({name}{number + 1}, {numbers}, {size});"
            )
    return indented("\n".join(lines), 4)


def _load(pieces: Pieces) -> str:
    """The input's tile, with what comes before the first pool, into a buffer."""
    plane, body = pieces.planes[0], "\n".join(pieces.input())
    return f"""\
    {{
{_hoisted(pieces, 0)}
        const int points = (ys0.last - ys0.first) * {plane.columns};
        for (int i = threadIdx.x; i < points * GROUP; i += THREADS) {{
            const int y = i / GROUP / {plane.columns} + ys0.first;
            const int x = i / GROUP % {plane.columns} + xs0.first;
            const int c = first + i % GROUP;
            float v = {kind_of(pieces.pools[0])}::neutral();
            if (c < channels && ys0.has(y) && xs0.has(x)) {{
{indented(body, 16)}
            }}
            buffers[0][i] = v;
        }}
    }}
"""


def _pool(pieces: Pieces, number: int) -> str:
    """A pool, and what follows it, from one buffer to the other or to memory."""
    plane, before = pieces.planes[number], pieces.planes[number - 1]
    pool, last = pieces.pools[number - 1], number == len(pieces.pools)
    (down, across), (above, beside) = pool.stride, pool.padding
    read = f"from[({{y}} * {before.columns} + {{x}}) * GROUP]"
    end = _stored_to_memory(pieces) if last else _stored(pieces, number)
    return f"""\
    {{
{_hoisted(pieces, number)}
        const float* const source = buffers[{(number - 1) % 2}];
{"" if last else _borders(pieces, number)}
        const int strips = (ys{number}.made() + {plane.strip - 1}) / {plane.strip};
        const int all = xs{number}.made() ? strips * {plane.columns} : 0;
        for (int i = threadIdx.x; i < all * GROUP; i += THREADS) {{
            const int x = i / GROUP % {plane.columns} + xs{number}.first;
            const int top_y = i / GROUP / {plane.columns} * {plane.strip}
                + ys{number}.start;
            const int c = first + i % GROUP;
            const int from_y = top_y * {down} - {above} - ys{number - 1}.first;
            const int from_x = xs{number}.nearest(x) * {across} - {beside}
                - xs{number - 1}.first;
            const float* const from = source
                + (from_y * {before.columns} + from_x) * GROUP + i % GROUP;
{indented(pieces.strip(number, "top_y", read, end), 12)}
        }}
    }}
"""


def _borders(pieces: Pieces, number: int) -> str:
    """Rows above and below the plane filled with what does not count."""
    plane, kind = pieces.planes[number], kind_of(pieces.pools[number])
    return f"""\
        float* const target = buffers[{number % 2}];
        const int height = ys{number}.last - ys{number}.first;
        const int made = xs{number}.made() ? ys{number}.made() : 0;
        const int above = ys{number}.start - ys{number}.first;
        for (int i = threadIdx.x; i < (height - made) * {plane.columns} * GROUP;
             i += THREADS) {{
            const int skipped = i < above * {plane.columns} * GROUP ? 0 : made;
            target[i + skipped * {plane.columns} * GROUP] = {kind}::neutral();
        }}"""


def _stored(pieces: Pieces, number: int) -> str:
    """An output into the next buffer; beside the plane, what does not count there."""
    plane = pieces.planes[number]
    body = "\n".join(pieces.pooled(number))
    return f"""\
if (y < ys{number}.stop) {{
    if (c < channels && xs{number}.has(x)) {{
{indented(body, 8)}
    }} else {{
        v = {kind_of(pieces.pools[number])}::neutral();
    }}
    if (x < xs{number}.last)
        target[((y - ys{number}.first) * {plane.columns} + x - xs{number}.first)
            * GROUP + i % GROUP] = v;
}}"""


def _stored_to_memory(pieces: Pieces) -> str:
    """An output to memory, if it is in the patch and in the plane."""
    number = len(pieces.pools)
    return f"""\
if (c < channels && y < ys{number}.stop && xs{number}.has(x)) {{
{indented(pieces.finished(number), 4)}
}}"""


def _hoisted(pieces: Pieces, number: int) -> str:
    """The operands that all of a block's values share, read once."""
    if not pieces.hoists:
        return ""
    at = {"channel": "first", "image": "n * channels + first"}
    return "\n".join(
        f"        const float a{operand} = fetch(p{operand} + {at[kind]});"
        for operand, kind in pieces.groups[number].kinds
        if kind != "tensor"
    )
