"""Energy of memory accesses by size and word length (paper, Table 3, 45 nm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log

import numpy as np

from memplan.arrays import Float64Array
from memplan.blocking.nest.layer import Tensor
from memplan.errors import UsageError

KIB = 1024
WORDS = (64, 128, 256, 512)  # bits
# pJ per 16 bits; a row per size in KiB, a column per word length.
TABLE_3: Mapping[int, tuple[float, float, float, float]] = {
    1: (1.20, 0.93, 0.69, 0.57),
    2: (1.54, 1.37, 0.91, 0.68),
    4: (2.11, 1.68, 1.34, 0.90),
    8: (3.19, 2.71, 2.21, 1.33),
    16: (4.36, 3.57, 2.66, 2.19),
    32: (5.82, 4.80, 3.52, 2.64),
    64: (8.10, 7.51, 5.79, 4.67),
    128: (11.66, 11.50, 8.46, 6.15),
    256: (15.60, 15.51, 13.09, 8.99),
    512: (23.37, 23.24, 17.93, 15.76),
    1024: (36.32, 32.81, 28.88, 25.22),
}
DRAM_PJ = 320.0
DRAM_ABOVE = 16 << 20  # bytes: what is larger is no longer on the chip
MAC_PJ = 1.0  # of a 16-bit multiplication and addition
REGISTER_PJ = 0.03  # of 16 bytes or less; a register file's grows with its size
REGISTER_BYTES = 16
# The datapath reads 16 inputs and 256 weights at once, and adds to 16 results.
PAPER_WORDS: Mapping[Tensor, int] = {
    Tensor.INPUT: 256,
    Tensor.KERNEL: 512,
    Tensor.OUTPUT: 256,
}


@dataclass(frozen=True)
class Curve:
    """Energy of an access of 16 bits against the size of the memory that serves it.

    nbytes: ascending, and pj: at these sizes, shape (m,) each; straight lines between
    them if both axes are logarithmic, and constant below the first. Above `dram_above`
    bytes an access costs `dram_pj`.
    """

    nbytes: tuple[float, ...]
    pj: tuple[float, ...]
    dram_above: int = DRAM_ABOVE
    dram_pj: float = DRAM_PJ

    def __call__(self, nbytes: float) -> float:
        """pJ per 16 bits of a memory of so many bytes."""
        if nbytes > self.dram_above:
            return self.dram_pj
        return self.on_chip(nbytes)

    def on_chip(self, nbytes: float) -> float:
        """The same, for a memory that is on the chip however large it is."""
        return float(np.exp(np.interp(log(max(nbytes, 1)), *self._knots)))

    def on_chips(self, nbytes: Float64Array) -> Float64Array:
        """The same of many memories, each of at least a byte."""
        found: Float64Array = np.exp(np.interp(np.log(nbytes), *self._knots))
        return found

    @cached_property
    def _knots(self) -> tuple[Float64Array, Float64Array]:
        return np.log(self.nbytes), np.log(self.pj)


@lru_cache(maxsize=64)
def table_3(word: int) -> Curve:
    """Table 3 for words of so many bits, continued beyond its rows.

    Between columns the logarithm of the energy is linear in that of the word length,
    from 64 to 512 bits. Above 1 MiB energy goes with the square root of the size; below
    1 KiB it is the smaller of that and a register file's, which goes with the size.
    Raises UsageError where the word length is not positive.
    """
    if word < 1:
        raise UsageError(f"a word of {word} bits: it must have at least one")
    at = np.log2(min(word, WORDS[-1]))
    sizes = [float(kib * KIB) for kib in TABLE_3]
    pj = [
        float(np.exp(np.interp(at, np.log2(WORDS), np.log(row))))
        for row in TABLE_3.values()
    ]
    # Where a register file and a small SRAM cost the same.
    meet = (pj[0] * REGISTER_BYTES / REGISTER_PJ) ** 2 / KIB
    small = [float(REGISTER_BYTES), meet]
    small_pj = [REGISTER_PJ, REGISTER_PJ * meet / REGISTER_BYTES]
    large = float(1 << 40)
    large_pj = pj[-1] * (large / sizes[-1]) ** 0.5
    return Curve((*small, *sizes, large), (*small_pj, *pj, large_pj))


def paper_curves() -> dict[Tensor, Curve]:
    """Table 3 for the word of each tensor in the paper's datapath."""
    return {tensor: table_3(word) for tensor, word in PAPER_WORDS.items()}
