"""What a process makes accesses, multiplications and bytes of memory cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from memplan.blocking.machine.area import PAPER_AREA, Area
from memplan.blocking.machine.energy import (
    DRAM_PJ,
    MAC_PJ,
    PAPER_WORDS,
    Curve,
    table_3,
)
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.precision import Precision

_LARGE = float(1 << 40)  # bytes that energies are continued to
# pJ in 45 nm of a multiplication and an addition of the partial sum's bits (Horowitz,
# Computing's energy problem, ISSCC 2014): int8 0.2 + 0.1, int32 3.1 + 0.1, fp16 1.1 +
# 0.9, fp32 3.7 + 0.9. int16 is the blocking paper's 1 pJ; bf16 is taken as fp16, whose
# multiplier is the larger.
MULTIPLIER_PJ: Mapping[str, float] = {
    "int8": 0.3,
    "int16": MAC_PJ,
    "int32": 3.2,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp32": 4.6,
}


@dataclass(frozen=True)
class AccessTable:
    """pJ of 16 bits: a row per size in bytes, a column per bits read at once; both
    ascend, and so do the energies down every column."""

    nbytes: tuple[float, ...]
    words: tuple[float, ...]
    pj: tuple[tuple[float, ...], ...]

    def curve(self, word: int, dram_pj: float) -> Curve:
        """For words of so many bits, the nearest where the table has none so short or
        so long; between columns both logarithms go together linearly. Energy goes with
        the square root of the size above the last row, and stays below the first."""
        at = np.log2(word)
        columns = np.log2(self.words)
        pj = [float(np.exp(np.interp(at, columns, np.log(row)))) for row in self.pj]
        outside = pj[-1] * (_LARGE / self.nbytes[-1]) ** 0.5
        return Curve((*self.nbytes, _LARGE), (*pj, outside), dram_pj=dram_pj)


@dataclass(frozen=True)
class Technology:
    """table: None for the paper's Table 3; dram_pj: 16 bits from main memory;
    multiplier_pj: a multiplication with its addition, by format."""

    table: AccessTable | None = None
    dram_pj: float = DRAM_PJ
    multiplier_pj: Mapping[str, float] = field(
        default_factory=lambda: dict(MULTIPLIER_PJ)
    )
    area: Area = PAPER_AREA

    def curves(self, words: Mapping[Tensor, int] = PAPER_WORDS) -> dict[Tensor, Curve]:
        """Energy by size for each tensor, of so many bits read at once."""
        if self.table is None:
            return {
                tensor: replace(table_3(word), dram_pj=self.dram_pj)
                for tensor, word in words.items()
            }
        return {t: self.table.curve(word, self.dram_pj) for t, word in words.items()}

    def mac_pj(self, precision: Precision) -> float:
        """pJ of one multiplication with its addition."""
        return self.multiplier_pj[precision.multiplier]


FORTY_FIVE = Technology()
