"""Layers as loop nests see them: sizes, and what each tensor is indexed by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from memplan.errors import InputError, UsageError

DIMS = ("X", "Y", "C", "K", "Fw", "Fh", "B", "G")
MAX_SIZE = 1 << 20  # of one dimension
MAX_MACS = 1 << 60  # so that counts stay exact in a float


class Tensor(str, Enum):
    """What a layer reads and writes."""

    INPUT = "input"
    KERNEL = "kernel"
    OUTPUT = "output"


# The loops that walk over a tensor; along all others it is used again.
INDEXED_BY: Mapping[Tensor, frozenset[str]] = {
    Tensor.INPUT: frozenset({"X", "Y", "C", "Fw", "Fh", "B", "G"}),
    Tensor.KERNEL: frozenset({"C", "K", "Fw", "Fh", "G"}),
    Tensor.OUTPUT: frozenset({"X", "Y", "K", "B", "G"}),
}


@dataclass(frozen=True)
class Layer:
    """A convolution, or what can be written as one (paper, sections 2 and 3).

    X, Y: output columns and rows; C, K: input and output channels of one group; Fw,
    Fh: window; B: images of a batch; G: groups; stride: columns and rows. kernel:
    False where there are no weights (pooling, local response normalization). The
    input is (X - 1) stride + Fw columns wide: padding counts as input.
    Raises InputError where a size is not in [1, MAX_SIZE].
    """

    name: str
    X: int
    Y: int
    C: int
    K: int
    Fw: int = 1
    Fh: int = 1
    B: int = 1
    G: int = 1
    stride: tuple[int, int] = (1, 1)
    kernel: bool = True

    def __post_init__(self) -> None:
        sizes = {dim: self.size(dim) for dim in DIMS}
        for name, size in [
            *sizes.items(),
            *zip(("sx", "sy"), self.stride, strict=True),
        ]:
            if not 1 <= size <= MAX_SIZE:
                raise InputError(
                    f"{self.name}: {name} is {size}, and must be in [1, {MAX_SIZE:,}]"
                )
        if self.macs > MAX_MACS:
            raise InputError(f"{self.name} has more than 2^60 multiplications")

    def size(self, dim: str) -> int:
        """The extent of one of DIMS."""
        extent: int = getattr(self, dim)
        return extent

    @property
    def macs(self) -> int:
        """Multiplications, each with an addition; of pooling, the operations."""
        total = 1
        for dim in DIMS:
            total *= self.size(dim)
        return total

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those it has, in the order input, kernel, output."""
        return tuple(t for t in Tensor if self.kernel or t is not Tensor.KERNEL)

    def padded(self, unroll: Mapping[str, int]) -> Layer:
        """The layer with sizes rounded up to what the datapath does at once, where they
        are more than that."""
        sizes = {
            dim: -(-self.size(dim) // n) * n
            for dim, n in unroll.items()
            if self.size(dim) > n
        }
        return replace(self, **sizes)  # type: ignore[arg-type]


def columns(count: int, window: int, stride: int) -> int:
    """Input columns that `count` adjacent outputs read through a window."""
    return (count - 1) * stride + window if window >= stride else count * window


def footprint(layer: Layer, tensor: Tensor, extents: Mapping[str, int]) -> int:
    """Elements of `tensor` that a tile of these extents touches."""
    e = extents
    if tensor is Tensor.KERNEL:
        return e["C"] * e["K"] * e["Fw"] * e["Fh"] * e["G"]
    if tensor is Tensor.OUTPUT:
        return e["X"] * e["Y"] * e["K"] * e["B"] * e["G"]
    wide = columns(e["X"], e["Fw"], layer.stride[0])
    high = columns(e["Y"], e["Fh"], layer.stride[1])
    return wide * high * e["C"] * e["B"] * e["G"]


def elements(layer: Layer, tensor: Tensor) -> int:
    """Elements of the whole tensor; alpha in the paper's equation 1."""
    return footprint(layer, tensor, {dim: layer.size(dim) for dim in DIMS})


def fully_connected(name: str, inputs: int, outputs: int, batch: int = 1) -> Layer:
    """A fully connected layer: a convolution of 1x1 images (paper, section 2)."""
    return Layer(name, 1, 1, inputs, outputs, B=batch)


def pooling(
    name: str, x: int, y: int, channels: int, window: tuple[int, int], stride: int
) -> Layer:
    """Windows reduced without weights, every channel by itself; x, y: of the output."""
    size = {"Fw": window[0], "Fh": window[1], "G": channels}
    return Layer(name, x, y, 1, 1, **size, stride=(stride, stride), kernel=False)


def normalization(name: str, x: int, y: int, channels: int, neighbours: int) -> Layer:
    """Local response normalization: a window that slides along the channels, which
    are X here, at every pixel, which are the batch."""
    return Layer(name, channels, 1, 1, 1, Fw=neighbours, B=x * y, kernel=False)


# Table 4 of the paper. It does not say how many neighbours LRN has (5 in AlexNet), nor
# the pooling's stride (2 in VGG; 56 is taken for the output).
_TABLE_4 = (
    Layer("Conv1", 256, 256, 256, 384, 11, 11),
    Layer("Conv2", 500, 375, 32, 48, 9, 9),
    Layer("Conv3", 32, 32, 108, 200, 4, 4),
    Layer("Conv4", 56, 56, 128, 256, 3, 3),
    Layer("Conv5", 28, 28, 256, 512, 3, 3),
    fully_connected("FC1", 200, 100),
    fully_connected("FC2", 4096, 4096),
    pooling("Pool", 56, 56, 128, (2, 2), 2),
    normalization("LRN", 55, 55, 96, 5),
)
PAPER_LAYERS: Mapping[str, Layer] = {layer.name.lower(): layer for layer in _TABLE_4}

_SIZES = ("C", "K", "X", "Y", "Fw", "Fh")
_OPTION = re.compile(r"(B|G|S)=?([0-9]{1,18})\Z", re.IGNORECASE)


def parse_layer(text: str) -> Layer:
    """A layer of Table 4 by its name, or ``C,K,X,Y,Fw,Fh`` and perhaps ``,B8`` (batch),
    ``,G2`` (groups) or ``,S2`` (stride) after it; the window may be left out.

    Raises UsageError naming what is wrong with it.
    """
    known = PAPER_LAYERS.get(text.strip().lower())
    if known is not None:
        return known
    parts = [part.strip() for part in text.split(",")]
    options = [match for part in parts if (match := _OPTION.match(part))]
    sizes = [part for part in parts if not _OPTION.match(part)]
    if len(parts) == 1:
        raise UsageError(
            f"{text!r} is no layer: give one of {', '.join(PAPER_LAYERS)}, or sizes "
            "as C,K,X,Y,Fw,Fh"
        )
    for part in sizes:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", part):
            raise UsageError(
                f"layer {text!r}: {part!r} is no size, nor B, G or S with a number"
            )
    if len(sizes) not in (4, 6):
        raise UsageError(
            f"layer {text!r} has {len(sizes)} sizes; 4 or 6 are needed: C,K,X,Y,Fw,Fh"
        )
    numbers = dict(zip(_SIZES, map(int, sizes), strict=False))
    others = {m[1].upper(): int(m[2]) for m in options}
    if len(others) != len(options):
        raise UsageError(f"layer {text!r}: B, G and S may each be given once")
    stride = others.pop("S", 1)
    return Layer(text, **(numbers | others), stride=(stride, stride))
