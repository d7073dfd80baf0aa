"""Parts of the CUDA kernels of pools: tiles of planes, strips of outputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from memplan.fusing.cuda.form import Form, grouped, operands, signature
from memplan.fusing.operators import Operation, Pool, literal
from memplan.fusing.patches import Span, spans

_ROWS = 4  # outputs one below the other that a thread makes
_UNROLLED = 128  # reads of one thread that are written out


@dataclass(frozen=True)
class Plane:
    """The plane before the first pool, or behind one, and the largest tile of it.

    made: rows of the tile that are in the plane. rows and columns: with padding, as
    the tile lies in a buffer. strip: rows that a thread makes, one below the other.
    capacity: points that its buffer has room for; none behind the last pool.
    """

    height: int
    width: int
    made: int
    rows: int
    columns: int
    strip: int = 1
    capacity: int = 0

    @property
    def strips(self) -> int:
        """Strips of a tile, the last of which may be cut off."""
        return -(-self.made // self.strip)


def tiled(
    pools: Sequence[Pool], size: tuple[int, int], patch: tuple[int, int], most: int
) -> list[Plane]:
    """The planes of height and width `size` and what pools make of it, for blocks that
    make `patch` of the last.

    Strips are as long as keeps the two buffers within `most` points together. If those
    of one row exceed it (patches at the border may be larger than those in the middle,
    by which sequences are measured), patches are made smaller, down to one point.
    """
    strips, (rows, columns) = [_strip(pool) for pool in pools], patch
    while True:
        tiles = [
            _largest(pools, axis, size[axis], part)
            for axis, part in enumerate((rows, columns))
        ]
        planes = _planes(pools, size, tiles, strips)
        if sum(buffers(planes)) <= most or (rows, columns) == (1, 1):
            return planes
        if max(strips) > 1:
            strips = [max(strip // 2, 1) for strip in strips]
        elif rows >= columns:
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)


def buffers(planes: Sequence[Plane]) -> tuple[int, int]:
    """Points of the two buffers: of the planes but the last, in turn."""
    capacities = [plane.capacity for plane in planes[:-1]]
    return max(capacities[::2]), max(capacities[1::2], default=0)


def unrolled(pool: Pool, strip: int) -> bool:
    """Whether a thread's reads are written out, and rows shared by its outputs."""
    return rows_read(pool, strip) * pool.kernel[1] <= _UNROLLED


def rows_read(pool: Pool, strip: int) -> int:
    """Rows of the plane before, from the first to the last that a strip looks at."""
    return (strip - 1) * pool.stride[0] + pool.reach(0)


def _strip(pool: Pool) -> int:
    """Rows that are worth making together: one, where windows do not overlap."""
    strip = _ROWS if pool.reach(0) > pool.stride[0] else 1
    while strip > 1 and not unrolled(pool, strip):
        strip //= 2
    return strip


def _largest(
    pools: Sequence[Pool], axis: int, size: int, patch: int
) -> list[tuple[int, int]]:
    """Of each plane, the most rows (or columns) that a tile has in the plane, and in
    all."""
    out = size
    for pool in pools:
        out = pool.size(out, out)[axis]
    tiles: list[list[Span]] = [
        spans(pools, axis, start, min(start + patch, out), size)
        for start in range(0, out, patch)
    ]
    return [
        (max(each.computed for each in plane), max(each.held for each in plane))
        for plane in zip(*tiles, strict=True)
    ]


def _planes(
    pools: Sequence[Pool],
    size: tuple[int, int],
    tiles: Sequence[Sequence[tuple[int, int]]],
    strips: Sequence[int],
) -> list[Plane]:
    sizes = [size]
    for pool in pools:
        sizes.append(pool.size(*sizes[-1]))
    planes: list[Plane] = []
    for number in reversed(range(len(sizes))):
        (made, rows), (_, columns) = tiles[0][number], tiles[1][number]
        strip = max(min(strips[number - 1], made), 1) if number else 1
        capacity = 0
        if planes:
            read = rows_read(pools[number], planes[0].strips * planes[0].strip)
            capacity = max(read, rows) * columns
        planes.insert(0, Plane(*sizes[number], made, rows, columns, strip, capacity))
    return planes


_HEAD = """\
#include "device.cuh"
#include "functions.cuh"

constexpr int GROUP = {group};
extern __shared__ float memory[];

// Where a point of a plane is, among all that a tensor has.
template <int HEIGHT, int WIDTH>
DEVICE long long at(int n, int c, int y, int x, int channels) {{
    return {at};
}}
template <int HEIGHT, int WIDTH>
DEVICE bool inside(int y, int x) {{
    return y >= 0 && y < HEIGHT && x >= 0 && x < WIDTH;
}}

"""
_AT = {
    False: "((static_cast<long long>(n) * channels + c) * HEIGHT + y) * WIDTH + x",
    True: "((static_cast<long long>(n) * HEIGHT + y) * WIDTH + x) * channels + c",
}


class Pieces:
    """Parts of the kernel of some operations, at least one pool among them.

    patch: rows and columns of the last plane that a block makes; all of them if there
    is one pool alone. limit: bytes of shared memory that a block may take. In all
    pieces the image, channel, row and column at hand are `n`, `c`, `y` and `x`.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        form: Form,
        patch: tuple[int, int],
        limit: int,
    ) -> None:
        self.form, self.groups = form, grouped(operations)
        self.pools = [each.pool for each in operations if each.pool is not None]
        size = (form.height, form.width)
        if len(self.pools) == 1:
            patch = self.pools[0].size(*size)
        most = limit // (4 * form.lanes)
        if len(self.pools) == 1:  # it reads memory, and needs no buffers
            most = sys.maxsize
        self.planes = tiled(self.pools, size, patch, most)
        self.operands = operands(
            self.groups, [plane.height * plane.width for plane in self.planes]
        )
        self.head = _HEAD.format(group=form.lanes, at=_AT[form.channels_last])
        self.signature = signature(form, self.operands)
        self.out = (self.planes[-1].height, self.planes[-1].width)

    def input(self) -> list[str]:
        """Statements that make `v` of the input, changed by what is before the pool."""
        plane = self.planes[0]
        where = f"at<{plane.height}, {plane.width}>(n, c, y, x, channels)"
        return [f"v = fetch(in + {where});", *self._changed(0)]

    def finished(self, number: int) -> str:
        """What is done with the value `v` of a window of a pool, counted from 1, at
        the end of the sequence: its average, what follows it, and to memory."""
        plane = self.planes[number]
        where = f"at<{plane.height}, {plane.width}>(n, c, y, x, channels)"
        return "\n".join([*self.pooled(number), f"narrow(v, out[{where}]);"])

    def pooled(self, number: int) -> list[str]:
        """Statements: the average of a sum `v`, and the operations behind the pool."""
        lines = [] if self.pools[number - 1].mode == "max" else [self._averaged(number)]
        return lines + self._changed(number)

    def pointer(self, number: int, operand: int) -> str:
        """The name of an operand of a plane's operations. In the functions of several
        pools each starts to count anew, so that those alike have the same text."""
        if len(self.pools) == 1:
            return f"p{operand}"
        return f"q{operand - self.groups[number].first}"

    def hoisted(self, number: int) -> list[str]:
        """Statements that read the operands that a block's values have in common."""
        at = {"channel": "first", "image": "n * channels + first"}
        return [
            f"const float {self._shared(name)} = fetch({name} + {at[kind]});"
            for operand, kind in self.groups[number].kinds
            if (name := self.pointer(number, operand)) and self._hoists(kind)
        ]

    def _hoists(self, kind: str) -> bool:
        alone = len(self.pools) == 1 or self.form.channels_last
        return not alone and kind != "tensor"

    def _shared(self, name: str) -> str:
        return f"value_{name}"

    def _changed(self, number: int) -> list[str]:
        plane, group, reads = self.planes[number], self.groups[number], {}
        where = f"at<{plane.height}, {plane.width}>(n, c, y, x, channels)"
        at = {"channel": "c", "image": "n * channels + c", "tensor": where}
        for operand, kind in group.kinds:
            name = self.pointer(number, operand)
            reads[operand] = f"fetch({name} + {at[kind]})"
            if self._hoists(kind):
                reads[operand] = self._shared(name)
        return group.statements(reads)

    def _averaged(self, number: int) -> str:
        """The sum `v` divided by the elements of its window, as torch counts them."""
        pool, before = self.pools[number - 1], self.planes[number - 1]
        if pool.divisor is not None:
            return f"v /= {literal(pool.divisor)};"
        sizes = ("y", before.height, self.planes[number].height)
        counts = [_counted(pool, 0, *sizes)]
        counts += [_counted(pool, 1, "x", before.width, self.planes[number].width)]
        return f"v /= static_cast<float>({counts[0]} * {counts[1]});"

    def strip(self, number: int, top: str, read: str, end: str) -> str:
        """The outputs of one thread, from row `top`, of a pool, counted from 1.

        read: an element of the window's plane, with {y} and {x} counted from the
        corner of the strip's first window. end: what is done with each output.
        """
        pool, length = self.pools[number - 1], self.planes[number].strip
        kind, (rows, columns) = kind_of(pool), pool.kernel
        down, across = pool.dilation
        if unrolled(pool, length):
            each = read.format(y="j", x=f"k * {across}")
            before = f"""\
float rows[{rows_read(pool, length)}];
UNROLL
for (int j = 0; j < {rows_read(pool, length)}; ++j) {{
    rows[j] = {kind}::neutral();
    UNROLL
    for (int k = 0; k < {columns}; ++k)
        rows[j] = {kind}::of(rows[j], {each});
}}
"""
            made = f"""\
    UNROLL
    for (int k = 0; k < {rows}; ++k)
        v = {kind}::of(v, rows[r * {pool.stride[0]} + k * {down}]);"""
        else:  # strips are of one row
            each = read.format(y=f"j * {down}", x=f"k * {across}")
            before = ""
            made = f"""\
    for (int j = 0; j < {rows}; ++j)
        for (int k = 0; k < {columns}; ++k)
            v = {kind}::of(v, {each});"""
        return f"""\
{before}UNROLL
for (int r = 0; r < {length}; ++r) {{
    const int y = {top} + r;
    float v = {kind}::neutral();
{made}
{indented(end, 4)}
}}"""


def _counted(pool: Pool, axis: int, at: str, size: int, made: int) -> str:
    """Elements of a window along an axis: the same for all, or counted where it is."""
    kernel, stride, padding = pool.kernel[axis], pool.stride[axis], pool.padding[axis]
    end = size + padding * (2 if pool.count_padding else 1)
    whole = (made - 1) * stride + kernel <= end
    if whole and (pool.count_padding or not padding):
        return str(kernel)
    padded = "true" if pool.count_padding else "false"
    return f"counted({at}, {stride}, {padding}, {kernel}, {size}, {padded})"


def kind_of(pool: Pool) -> str:
    """What the source calls the way a pool puts two values together."""
    return "Max" if pool.mode == "max" else "Sum"


def inside(plane: Plane) -> str:
    """Whether (y, x) is in a plane and not beside it."""
    return f"inside<{plane.height}, {plane.width}>(y, x)"


def indented(text: str, spaces: int) -> str:
    """`text` with each line moved to the right."""
    return "\n".join(" " * spaces + line if line else "" for line in text.split("\n"))
