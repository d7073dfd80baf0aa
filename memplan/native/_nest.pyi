"""Kernels for loop nests: cache simulation.

Dimensions are numbered X, Y, C, K, Fw, Fh, B, G from 0. Wrong arguments raise
ValueError or TypeError: callers check what users give them.
"""

from collections.abc import Callable, Sequence

class ConvTensors:
    """Where the tensors of a convolution lie in memory.

    sizes: of all dimensions, C and K of one group; stride: columns and rows; input and
    output: elements from one row, and from one plane, to the next; tile: the register
    tile's columns and channels. The kernel is [G][K / tile k][C][Fh][Fw][tile k].
    """

    def __init__(
        self,
        sizes: Sequence[int],
        stride: Sequence[int],
        element_bytes: int,
        input: Sequence[int],  # noqa: A002
        output: Sequence[int],
        tile: Sequence[int],
    ) -> None: ...

class CacheSim:
    """Set-associative caches, innermost first, each (bytes, ways, bytes of a line).

    Least recently used first out, write-allocate, write-back, neither inclusive nor
    exclusive; references of one call after another go to the same caches. Threads may
    share one; they take turns.
    """

    def __init__(self, levels: Sequence[Sequence[int]]) -> None: ...
    def blocked(self, tensors: ConvTensors, loops: Sequence[tuple[int, int]]) -> None:
        """A blocked convolution: (dimension, extent), innermost first, over tiles.

        Every element is a reference: of the input and the kernel, and of the output
        where its register tile is read and written.
        """

    def gemm(self, tensors: ConvTensors, blocks: Sequence[int]) -> None:
        """im2col and a matrix product with packed blocks: depth, positions, channels.

        For every image and group; positions and channels in whole register tiles.
        """

    def counts(self) -> list[tuple[int, int, int]]:
        """By level: accesses, misses, write-backs.

        A level's misses are the next one's accesses. A dirty line that leaves a level
        is written into the next one without a fetch, and counts as a write-back only.
        """

class Optimum:
    """The best loop nest found, with X Y C K B Fw Fh and the window, if it is in one
    piece, numbered from 0.

    energy: pJ, infinite where there was no time for any nest; lower_bound: of all
    nests; labels: partial nests looked at.
    """

    @property
    def energy(self) -> float: ...
    @property
    def lower_bound(self) -> float: ...
    @property
    def proved(self) -> bool: ...
    @property
    def labels(self) -> int: ...
    @property
    def loops(self) -> list[tuple[int, int]]:
        """(dimension, extent), innermost first; the window's extent is 0."""

    @property
    def kept(self) -> list[tuple[int, int, float, float, bool]]:
        """(tensor, index of the loop it is used again in, elements, pJ, whether it
        slides along that loop), inside out."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search."""

class Problem:
    """A layer and its memories; see native/nest/optimum_problem.h.

    extent and base: of X Y C K B; memories: of input, kernel and output, each (knots,
    largest, pool, slides, levels, main_pj, last), pJ an element, of the output's a
    partial sum; last_write: of a result, in parts of that. slides: whether they can
    have sliding buffers, which of the input alone makes a difference. last: knots of
    what lies outermost of the tensor's buffers; none, if these are the same.
    """

    def __init__(
        self,
        extent: Sequence[int],
        base: Sequence[int],
        window: Sequence[int],
        base_window: Sequence[int],
        stride: Sequence[int],
        kernel: bool,
        memories: Sequence[
            tuple[
                Sequence[tuple[float, float]],
                float,
                int,
                bool,
                Sequence[tuple[float, float, int, bool]],
                float,
                Sequence[tuple[float, float]],
            ]
        ],
        pools: Sequence[float],
        element_bytes: Sequence[float],
        last_write: float,
        count_fills: bool,
    ) -> None: ...

def optimum(
    problem: Problem,
    whole: bool,
    incumbent: float,
    seconds: float,
    threads: int,
    report: Callable[[], None] | None = None,
) -> Optimum:
    """The loop nest of least energy; see native/nest/optimum.h.

    whole: any extents, and the window's loops anywhere; then energies are lower bounds.
    report: called now and then. Ctrl-C, there as well, ends the search with what there
    is so far.
    """

def improved(
    problem: Problem,
    starts: Sequence[Sequence[tuple[int, int]]],
    bound: float,
    rounds: int,
    seconds: float,
    threads: int,
    report: Callable[[], None] | None = None,
    first: int = 0,
) -> tuple[list[tuple[int, int]], int, bool, bool]:
    """The best nest of the whole space that a search from `starts` comes to; see
    native/nest/whole_search.h.

    starts: (dimension, extent), innermost first, of X Y C K B Fw Fh. report: called now
    and then. first: number of the first round, which seeds its random choices. Returns
    the loops, how many nests were tried, whether the search came to its end, and
    whether Ctrl-C ended it, which keeps the best so far.
    """
