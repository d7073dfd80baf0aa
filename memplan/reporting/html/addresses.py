"""Addresses of a run, with what it never used between them left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array


def closed_up(
    device: npt.NDArray[np.int16],
    address: npt.NDArray[np.uint64],
    size: Int64Array,
) -> Int64Array:
    """Where each block begins when no unused address lies between, bytes, shape (n,).

    Blocks that share an address share a place; those of a device keep their order, and
    devices follow one another. An address that no block ever covered takes up nothing.
    """
    place = np.zeros(len(address), dtype=np.int64)
    base = 0
    for one in np.unique(device):
        rows = np.flatnonzero(device == one)
        order = rows[np.argsort(address[rows], kind="stable")]
        begin = address[order] - address[order[0]]
        end = np.maximum.accumulate(begin + size[order].astype(np.uint64))
        unused = np.zeros(len(order), dtype=np.int64)
        # Unsigned: what does not reach the block before would wrap around.
        apart = begin[1:] > end[:-1]
        unused[1:][apart] = (begin[1:][apart] - end[:-1][apart]).astype(np.int64)
        place[order] = base + begin.astype(np.int64) - np.cumsum(unused)
        base = int((place[order] + size[order]).max())
    return place
