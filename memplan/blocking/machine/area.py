"""Chip area by bytes of memory (paper, figure 7).

The paper has three sizes: DianNao's 36 KiB as the unit, 1 MiB as 6 times and 8 MiB as
45 times that, which is 45 mm². A straight line that keeps the first says 6.3 and 44.8.
"""

from __future__ import annotations

from dataclasses import dataclass

MM2_PER_MIB = 5.5
DIANNAO_MM2 = 1.0
DIANNAO_BYTES = 36 << 10
_MIB = 1 << 20
# What is not memory: the multipliers, and all else.
DATAPATH_MM2 = DIANNAO_MM2 - MM2_PER_MIB * DIANNAO_BYTES / _MIB


@dataclass(frozen=True)
class Area:
    """mm² of a MiB of memory, and of the datapath with all else that is no memory."""

    per_mib: float = MM2_PER_MIB
    datapath: float = DATAPATH_MM2


PAPER_AREA = Area()


def area_mm2(nbytes: int, area: Area = PAPER_AREA) -> float:
    """mm² of a core with so many bytes of memory on the chip; by default 45 nm."""
    return area.datapath + area.per_mib * nbytes / _MIB
