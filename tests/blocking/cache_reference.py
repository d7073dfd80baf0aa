"""Caches, and the references of convolutions, written as plainly as they can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memplan.blocking.nest.layer import DIMS, Layer
from memplan.blocking.nest.nest import Nest
from memplan.blocking.run.cache import Layout, input_size

Reference = tuple[int, bool]  # byte address, and whether it is written
PAGE = 4096


class PlainCaches:
    """Sets as lists of [line, dirty], the most recently used one first."""

    def __init__(self, levels: Sequence[tuple[int, int, int]]) -> None:
        self.levels = levels
        self.sets: list[list[list[list[int]]]] = [
            [[] for _ in range(nbytes // ways // line)] for nbytes, ways, line in levels
        ]
        self.counts = [[0, 0, 0] for _ in levels]

    def access(self, level: int, address: int, write: bool) -> None:
        if level == len(self.levels):
            return
        self.counts[level][0] += 1
        if self._present(level, address, write):
            return
        self.counts[level][1] += 1
        victim = self._insert(level, address, write)
        self.access(level + 1, address, False)
        self._leave(level, victim)

    def _write_back(self, level: int, address: int) -> None:
        if level < len(self.levels) and not self._present(level, address, True):
            self._leave(level, self._insert(level, address, True))

    def _leave(self, level: int, victim: list[int] | None) -> None:
        if victim and victim[1]:
            self.counts[level][2] += 1
            self._write_back(level + 1, victim[0] * self.levels[level][2])

    def _set(self, level: int, address: int) -> tuple[list[list[int]], int]:
        line = address // self.levels[level][2]
        sets = self.sets[level]
        return sets[line % len(sets)], line

    def _present(self, level: int, address: int, write: bool) -> bool:
        lines, line = self._set(level, address)
        for place, entry in enumerate(lines):
            if entry[0] == line:
                entry[1] |= write
                lines.insert(0, lines.pop(place))
                return True
        return False

    def _insert(self, level: int, address: int, write: bool) -> list[int] | None:
        lines, line = self._set(level, address)
        lines.insert(0, [line, int(write)])
        return lines.pop() if len(lines) > self.levels[level][1] else None


class Memory:
    """Addresses of the tensors, each on a page of its own."""

    def __init__(self, layer: Layer, layout: Layout) -> None:
        self.layer, self.layout = layer, layout
        planes = layer.B * layer.G * layer.C * layout.input_plane
        blocks = -(-layer.K // 8) * 8
        self.kernel_base = _page(4 * planes)
        weights = layer.G * blocks * layer.C * layer.Fh * layer.Fw
        self.output_base = self.kernel_base + _page(4 * weights)
        outputs = layer.B * layer.G * layer.K * layout.output_plane
        self.end = self.output_base + _page(4 * outputs)

    def input(self, b: int, g: int, c: int, row: int, column: int) -> int:
        plane = (b * self.layer.G + g) * self.layer.C + c
        place = plane * self.layout.input_plane + row * self.layout.input_row + column
        return 4 * place

    def kernel(self, g: int, k: int, c: int, fh: int, fw: int) -> int:
        n = self.layer
        block = g * -(-n.K // 8) + k // 8
        place = (((block * n.C + c) * n.Fh + fh) * n.Fw + fw) * 8 + k % 8
        return self.kernel_base + 4 * place

    def output(self, b: int, g: int, k: int, y: int, x: int) -> int:
        plane = (b * self.layer.G + g) * self.layer.K + k
        place = plane * self.layout.output_plane + y * self.layout.output_row + x
        return self.output_base + 4 * place


def _page(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def blocked(layer: Layer, layout: Layout, nest: Nest) -> Iterator[Reference]:
    """References of a nest over register tiles of 4 columns by 8 channels."""
    memory = Memory(layer, layout)
    kept = 0
    while kept < len(nest.loops) and nest.loops[kept].dim in ("C", "Fw", "Fh"):
        kept += 1

    def walk(level: int, at: dict[str, range]) -> Iterator[Reference]:
        if level == 0:
            yield from step(at)
        else:
            loop = nest.loops[level - 1]
            whole = at[loop.dim]
            for low in range(whole.start, whole.stop, loop.inner):
                part = range(low, min(low + loop.inner, whole.stop))
                yield from walk(level - 1, at | {loop.dim: part})
        if level == kept:
            yield from add(at)

    def step(at: dict[str, range]) -> Iterator[Reference]:
        b, g, c, fh, fw, y = (at[d].start for d in ("B", "G", "C", "Fh", "Fw", "Y"))
        sx, sy = layer.stride
        for x in at["X"]:
            yield memory.input(b, g, c, y * sy + fh, x * sx + fw), False
        for k in at["K"]:
            yield memory.kernel(g, k, c, fh, fw), False

    def add(at: dict[str, range]) -> Iterator[Reference]:
        first = not any(at[d].start for d in ("C", "Fh", "Fw"))
        b, g, y = (at[d].start for d in ("B", "G", "Y"))
        for k in at["K"]:
            for write in (True,) if first else (False, True):
                for x in at["X"]:
                    yield memory.output(b, g, k, y, x), write

    yield from walk(len(nest.loops), {dim: range(layer.size(dim)) for dim in DIMS})


def gemm(
    layer: Layer, layout: Layout, blocks: tuple[int, int, int]
) -> Iterator[Reference]:
    """References of im2col, packing, and the product of all blocks."""
    memory = Memory(layer, layout)
    total, positions = layer.C * layer.Fh * layer.Fw, layer.X * layer.Y
    panels = memory.end + _page(4 * total * positions)
    for b in range(layer.B):
        for g in range(layer.G):
            yield from _im2col(memory, b, g)
            yield from _product(memory, b, g, blocks, panels)


def _im2col(memory: Memory, b: int, g: int) -> Iterator[Reference]:
    n, to = memory.layer, memory.end
    sx, sy = n.stride
    for c, fh, fw, y in _grid(n.C, n.Fh, n.Fw, n.Y):
        for x in range(0, n.X, 8):
            part = range(x, min(x + 8, n.X))
            for column in part:
                yield memory.input(b, g, c, y * sy + fh, column * sx + fw), False
            for _ in part:
                yield to, True
                to += 4


def _product(
    memory: Memory,
    b: int,
    g: int,
    blocks: tuple[int, int, int],
    panels: int,
) -> Iterator[Reference]:
    n = memory.layer
    total, positions = n.C * n.Fh * n.Fw, n.X * n.Y
    depth, rows, columns = blocks

    def weight(k: int, p: int) -> int:
        c, window = divmod(p, n.Fh * n.Fw)
        return memory.kernel(g, k, c, *divmod(window, n.Fw))

    for k0, k1 in _parts(n.K, columns):
        for p0, p1 in _parts(total, depth):
            deep = p1 - p0
            for m0, m1 in _parts(positions, rows):
                for m in range(m0, m1, 16):
                    for p in range(deep):
                        for i in range(m, min(m + 16, m1), 4):
                            for j in range(i, min(i + 4, m1)):
                                column = (p0 + p) * positions + j
                                yield memory.end + 4 * column, False
                            for j in range(4):
                                place = (i - m0) * deep + p * 4 + j
                                yield panels + 4 * place, True
                for k in range(k0, k1, 8):
                    for m in range(m0, m1, 4):
                        for p in range(deep):
                            for j in range(4):
                                place = (m - m0) * deep + p * 4 + j
                                yield panels + 4 * place, False
                            for i in range(8):
                                yield weight(k, p0 + p) + 4 * i, False
                        for i in range(k, min(k + 8, k1)):
                            yield from _row(memory, b, g, i, m, min(m + 4, m1), p0)


def _row(
    memory: Memory, b: int, g: int, k: int, low: int, high: int, p0: int
) -> Iterator[Reference]:
    wide = memory.layer.X
    while low < high:
        end = min(high, (low // wide + 1) * wide)
        for write in (True,) if p0 == 0 else (False, True):
            for m in range(low, end):
                yield memory.output(b, g, k, *divmod(m, wide)), write
        low = end


def _parts(size: int, most: int) -> Iterator[tuple[int, int]]:
    for low in range(0, size, most):
        yield low, min(low + most, size)


def _grid(*sizes: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in _grid(*sizes[1:]):
            yield first, *rest


def room(layer: Layer, row: int, plane: int) -> Layout:
    """A dense layout with `row` and `plane` elements left free after each."""
    wide, high = input_size(layer)
    return Layout(
        wide + row,
        (wide + row) * high + plane,
        layer.X + row,
        (layer.X + row) * layer.Y + plane,
    )
