"""What a convolution is, apart from its numbers; which algorithms can do it."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import UsageError

Pair = tuple[int, int]

ALGORITHMS = ("direct", "winograd2", "winograd4")


@dataclass(frozen=True)
class Geometry:
    """A convolution with groups = 1 over planes; pairs are (height, width)."""

    channels_in: int
    channels_out: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        sizes = (*self.kernel, *self.stride, *self.dilation)
        least = min(self.channels_in, self.channels_out, *sizes)
        if least < 1 or min(self.padding) < 0:
            raise UsageError(f"{self}: sizes are at least 1, padding at least 0")

    def size(self, height: int, width: int) -> Pair:
        """Height and width of the output for an input of this size.

        Raises UsageError if the kernel is larger than the padded input.
        """
        return self._along(0, height), self._along(1, width)

    def _along(self, axis: int, size: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        room = size + 2 * self.padding[axis] - reach
        if size < 1 or room < 0:
            raise UsageError(
                f"an input {size} wide or high is too small for a kernel that reaches "
                f"{reach} with padding {self.padding[axis]}"
            )
        return room // self.stride[axis] + 1


def algorithms(geometry: Geometry) -> list[str]:
    """The algorithms that can do it, of ALGORITHMS: "direct" can do all.

    "winograd2" and "winograd4" are F(2x2, 3x3) and F(4x4, 3x3) of Lavin and Gray
    (2016): 2.25 and 4 times fewer multiplications, and a larger rounding error.
    """
    small = (
        geometry.kernel == (3, 3)
        and geometry.stride == (1, 1)
        and geometry.dilation == (1, 1)
        and max(geometry.padding) <= 1
    )
    return list(ALGORITHMS) if small else ["direct"]
