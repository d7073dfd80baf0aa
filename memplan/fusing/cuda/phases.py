"""What a block does between two barriers, each as a function of CUDA C++."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memplan.fusing.cuda.pieces import Pieces, indented, kind_of
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
