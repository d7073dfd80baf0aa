"""What kernels of pools are put together from: a strip of outputs, and its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memplan.fusing.cuda.expressions import (
    grouped,
    literal,
    operands,
    signature,
)
from memplan.fusing.cuda.kernel import Form
from memplan.fusing.cuda.planes import Plane, rows_read, tiled, unrolled
from memplan.fusing.operations import Operation, Pool

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
