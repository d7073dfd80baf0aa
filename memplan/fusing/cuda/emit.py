"""A sequence of a stack as CUDA C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memplan.fusing.cuda.form import (
    LANES,
    THREADS,
    TYPES,
    Form,
    Group,
    Kernel,
    grouped,
    operands,
    signature,
)
from memplan.fusing.cuda.pieces import Pieces, buffers, indented, inside, kind_of
from memplan.fusing.operators import Operation
from memplan.fusing.patches import spans


class Phase(NamedTuple):
    """text: of a function, from its parameters on. arguments: of a call of it."""

    text: str
    arguments: list[str]


class Phases:
    """The phases of a sequence; the second buffer starts at float `second`.

    In a function the rows and columns that are made are `ys` and `xs`, those they are
    made from `from_ys` and `from_xs`: constants, where a block makes a whole plane.
    """

    def __init__(self, pieces: Pieces, second: int) -> None:
        self._pieces, self._second = pieces, second

    def all(self) -> Iterator[Phase]:
        """Reading the input; then pool after pool, the last one to memory."""
        yield self._load()
        for number in range(1, len(self._pieces.planes)):
            yield self._pool(number)

    def _load(self) -> Phase:
        """The input's tile, with what comes before the first pool, into a buffer."""
        plane, body = self._pieces.planes[0], "\n".join(self._pieces.input())
        value = f"const {self._pieces.form.type}* __restrict__ in"
        text = f"""\
    const int points = (ys.last - ys.first) * {plane.columns};
    for (int i = threadIdx.x; i < points * GROUP; i += THREADS) {{
        const int y = i / GROUP / {plane.columns} + ys.first;
        const int x = i / GROUP % {plane.columns} + xs.first;
        const int c = first + i % GROUP;
        float v = {kind_of(self._pieces.pools[0])}::neutral();
        if (c < channels && ys.has(y) && xs.has(x)) {{
{indented(body, 12)}
        }}
        memory[i] = v;
    }}
"""
        return self._phase(0, [(value, "in")], text, [("", 0)])

    def _pool(self, number: int) -> Phase:
        """A pool, and what follows it, from one buffer to the other or to memory."""
        pieces = self._pieces
        plane, before = pieces.planes[number], pieces.planes[number - 1]
        pool, last = pieces.pools[number - 1], number == len(pieces.pools)
        (down, across), (above, beside) = pool.stride, pool.padding
        read = f"memory[from + ({{y}} * {before.columns} + {{x}}) * GROUP]"
        end = self._to_memory() if last else self._to_buffer(number)
        text = f"""\
{"" if last else self._borders(number)}\
    const int strips = (ys.made() + {plane.strip - 1}) / {plane.strip};
    const int all = xs.made() ? strips * {plane.columns} : 0;
    for (int i = threadIdx.x; i < all * GROUP; i += THREADS) {{
        const int x = i / GROUP % {plane.columns} + xs.first;
        const int top = i / GROUP / {plane.columns} * {plane.strip} + ys.start;
        const int c = first + i % GROUP;
        const int from_y = top * {down} - {above} - from_ys.first;
        const int from_x = xs.nearest(x) * {across} - {beside} - from_xs.first;
        const int from =
            source + (from_y * {before.columns} + from_x) * GROUP + i % GROUP;
{indented(pieces.strip(number, "top", read, end), 8)}
    }}
"""
        given = [("int source", str((number - 1) % 2 * self._second))]
        if last:
            given.append((f"{pieces.form.type}* __restrict__ out", "out"))
        else:
            given.append(("int target", str(number % 2 * self._second)))
        return self._phase(number, given, text, [("", 0), ("from_", -1)])

    def _phase(
        self,
        number: int,
        given: list[tuple[str, str]],
        text: str,
        planes: list[tuple[str, int]],
    ) -> Phase:
        """The function of a body: with its operands, and its rows and columns.

        given: parameters and arguments. planes: of each plane that the body tells of,
        what its spans' names begin with, and its place from that of `number`.
        """
        pieces, lines = self._pieces, []
        given = [(f"int {each}", each) for each in ("n", "first", "channels")] + given
        for prefix, place in planes:
            for axis, name in enumerate(("ys", "xs")):
                span = self._whole(axis, number + place)
                if span:
                    lines.append(f"    constexpr Span {prefix}{name} = {span};\n")
                else:
                    given.append((f"Span {prefix}{name}", f"{name}{number + place}"))
        for operand, kind in pieces.groups[number].kinds:
            name = pieces.pointer(number, operand)
            type_ = "float" if kind == "channel" else pieces.form.type
            given.append((f"const {type_}* __restrict__ {name}", f"p{operand}"))
        lines += [f"    {line}\n" for line in pieces.hoisted(number)]
        parameters = ",\n    ".join(parameter for parameter, _ in given)
        whole = f"(\n    {parameters}) {{\n{''.join(lines)}{text}}}\n"
        return Phase(whole, [argument for _, argument in given])

    def _whole(self, axis: int, number: int) -> str:
        """The span of a plane, if a block makes all of it along this axis."""
        pieces = self._pieces
        last = pieces.planes[-1]
        out, made = ((last.height, last.made), (last.width, last.columns))[axis]
        if made < out:
            return ""
        size = (pieces.form.height, pieces.form.width)[axis]
        found = spans(pieces.pools, axis, 0, out, size)[number]
        return f"{{{found.start}, {found.stop}, {found.first}, {found.last}}}"

    def _borders(self, number: int) -> str:
        """Rows above and below the plane filled with what does not count."""
        pieces = self._pieces
        columns = pieces.planes[number].columns
        return f"""\
    const int made = xs.made() ? ys.made() : 0;
    const int border = (ys.last - ys.first - made) * {columns} * GROUP;
    const int above = (ys.start - ys.first) * {columns} * GROUP;
    for (int i = threadIdx.x; i < border; i += THREADS) {{
        const int skipped = i < above ? 0 : made * {columns} * GROUP;
        memory[target + i + skipped] = {kind_of(pieces.pools[number])}::neutral();
    }}
"""

    def _to_buffer(self, number: int) -> str:
        """An output into a buffer; beside the plane, what does not count there."""
        pieces = self._pieces
        body, columns = "\n".join(pieces.pooled(number)), pieces.planes[number].columns
        return f"""\
if (y < ys.stop && x < xs.last) {{
    if (c < channels && xs.has(x)) {{
{indented(body, 8)}
    }} else {{
        v = {kind_of(pieces.pools[number])}::neutral();
    }}
    const int at = (y - ys.first) * {columns} + x - xs.first;
    memory[target + at * GROUP + i % GROUP] = v;
}}"""

    def _to_memory(self) -> str:
        """An output to memory, if it is in the patch."""
        return f"""\
if (c < channels && y < ys.stop && xs.has(x)) {{
{indented(self._pieces.finished(len(self._pieces.pools)), 4)}
}}"""


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


_WIDEST = 16  # bytes that a thread reads at once

_SOURCE = """\
#include "device.cuh"
#include "functions.cuh"

struct alignas({bytes}) Pack {{
    {type} values[{width}];
}};

{head} {{
    const int packs = images * channels * plane / {width};
    const Pack* from = reinterpret_cast<const Pack*>(in);
    Pack* to = reinterpret_cast<Pack*>(out);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < packs;
         i += gridDim.x * THREADS) {{
        Pack pack = from[i];
        {before}
        UNROLL
        for (int e = 0; e < {width}; ++e) {{
            {each}
            float v = widen(pack.values[e]);
            {body}
            narrow(v, pack.values[e]);
        }}
        to[i] = pack;
    }}
}}
"""


def emit_elementwise(group: Group, form: Form) -> Kernel:
    """A kernel whose threads each take as many elements as 16 bytes hold.

    Fewer, if that many do not lie in one plane (channels last: at one point), or if
    tensors are not aligned. Neither height and width nor the number of channels are
    in the source. A launch takes at most 2**30 elements.
    """
    kinds = {kind for _, kind in group.kinds}
    width = _width(form, bool(kinds - {"tensor"}))
    before, each = _places(kinds, form.channels_last, f"i * {width}")
    reads = {}
    for number, kind in group.kinds:
        if kind == "tensor":
            pack = f"reinterpret_cast<const Pack*>(p{number})[i]"
            before.append(f"const Pack t{number} = {pack};")
            reads[number] = f"widen(t{number}.values[e])"
        else:
            reads[number] = f"fetch(p{number} + {'c' if kind == 'channel' else 'row'})"
    plane = form.height * form.width
    taken = operands([group], [plane])
    source = _SOURCE.format(
        bytes=width * TYPES[form.dtype][1],
        type=form.type,
        width=width,
        head=signature(form, taken),
        before="\n        ".join(before),
        each="\n            ".join(each),
        body="\n            ".join(group.statements(reads)),
    )
    return Kernel(source, (form.height, form.width), taken, plane, width * THREADS)


def _places(
    kinds: set[str], channels_last: bool, at: str
) -> tuple[list[str], list[str]]:
    """Statements before a pack and before each element: which channel `c` it is of,
    and which `row` of the tensors that have one value a channel of each image."""
    before, each = [], []
    if not channels_last:
        if kinds & {"channel", "image"}:
            before.append(f"const int row = {at} / plane;")
        if "channel" in kinds:
            before.append("const int c = row % channels;")
    elif kinds & {"channel", "image"}:
        before.append(f"const int first = {at} % channels;")
        each.append("const int c = first + e;")
        if "image" in kinds:
            before.append(f"const int image = {at} / channels / plane;")
            each.append("const int row = image * channels + c;")
    return before, each


def _width(form: Form, by_channel: bool) -> int:
    """Elements of a pack: a power of two that divides what lies together."""
    if not form.aligned:
        return 1
    together = form.height * form.width
    if form.channels_last and by_channel:
        together = form.channels
    elif not by_channel:
        together *= form.channels
    width = _WIDEST // TYPES[form.dtype][1]
    while together % width:
        width //= 2
    return width


def emit(
    operations: Sequence[Operation],
    form: Form,
    patch: tuple[int, int],
    limit: int,
) -> Kernel:
    """One kernel of all these operations, for values of this form.

    patch: rows and columns of the last plane that a block makes; fewer, if more do not
    fit. limit: bytes of shared memory that suit a block, exceeded only where it makes
    one point. For GPUs from sm_75 on. What is emitted has been compiled for sm_75 and
    sm_90 and its arithmetic checked on a CPU; it has not run on a GPU.
    """
    pools = sum(not operation.elementwise for operation in operations)
    if not pools:
        return emit_elementwise(grouped(operations)[0], form)
    pieces = Pieces(operations, form, patch, limit)
    return emit_single(pieces) if pools == 1 else emit_buffered(pieces)
