"""Sequences with one pool: threads that read its windows from memory."""

from __future__ import annotations

from memplan.fusing.cuda.kernel import LANES, THREADS, Kernel
from memplan.fusing.cuda.pieces import Pieces, indented, inside, kind_of

_WIDE = 32  # elements of a window that a warp shares, where its rows have 4 or more


def emit_single(pieces: Pieces) -> Kernel:
    """A kernel that needs no shared memory: caches hold what windows have in common.

    A launch makes and takes at most 2**30 elements.
    """
    rows, columns = pieces.pools[0].kernel
    if rows * columns >= _WIDE and columns >= 4 and not pieces.form.channels_last:
        return _by_warps(pieces)
    return _by_threads(pieces)


def _by_threads(pieces: Pieces) -> Kernel:
    """A thread for each strip of outputs."""
    pool, out = pieces.pools[0], pieces.planes[1]
    items = out.strips * out.width
    if pieces.form.channels_last:
        decoded = f"""\
        const int c = i % channels, item = i / channels % {items};
        const int n = i / channels / {items};"""
    else:
        decoded = f"""\
        const int item = i % {items}, row = i / {items};
        const int c = row % channels, n = row / channels;"""
    done = f"if (y < {out.height}) {{\n{indented(pieces.finished(1), 4)}\n}}"
    strip = pieces.strip(1, "top", "value(from_y + {y}, from_x + {x})", done)
    body = f"""\
 {{
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < images * channels * {items};
         i += gridDim.x * THREADS) {{
{decoded}
        const int x = item % {out.width}, top = item / {out.width} * {out.strip};
        const int from_y = top * {pool.stride[0]} - {pool.padding[0]};
        const int from_x = x * {pool.stride[1]} - {pool.padding[1]};
{indented(_value(pieces), 8)}
{indented(strip, 8)}
    }}
}}
"""
    return Kernel(
        pieces.head + pieces.signature + body, pieces.out, pieces.operands, items
    )


def _by_warps(pieces: Pieces) -> Kernel:
    """A warp for each output: its threads share the window among them."""
    pool, out = pieces.pools[0], pieces.planes[1]
    kind, items = kind_of(pool), out.height * out.width
    (rows, columns), (down, across) = pool.kernel, pool.dilation
    body = f"""\
 {{
    const int lane = threadIdx.x % LANES;
    for (int i = (blockIdx.x * THREADS + threadIdx.x) / LANES;
         i < images * channels * {items}; i += gridDim.x * (THREADS / LANES)) {{
        const int item = i % {items}, row = i / {items};
        const int c = row % channels, n = row / channels;
        const int x = item % {out.width}, y = item / {out.width};
        const int from_y = y * {pool.stride[0]} - {pool.padding[0]};
        const int from_x = x * {pool.stride[1]} - {pool.padding[1]};
{indented(_value(pieces), 8)}
        float v = {kind}::neutral();
        for (int e = lane; e < {rows * columns}; e += LANES)
            v = {kind}::of(v, value(from_y + e / {columns} * {down},
                                    from_x + e % {columns} * {across}));
        UNROLL
        for (int bits = LANES / 2; bits > 0; bits /= 2)
            v = {kind}::of(v, exchanged(v, bits));
        if (lane == 0) {{
{indented(pieces.finished(1), 12)}
        }}
    }}
}}
"""
    source = pieces.head + pieces.signature + body
    return Kernel(source, pieces.out, pieces.operands, items, THREADS // LANES)


def _value(pieces: Pieces) -> str:
    """A function of a point of the input, in the plane or in its padding."""
    first = "\n".join(pieces.input())
    return f"""\
const auto value = [&](int y, int x) {{
    float v = {kind_of(pieces.pools[0])}::neutral();
    if ({inside(pieces.planes[0])}) {{
{indented(first, 8)}
    }}
    return v;
}};"""
