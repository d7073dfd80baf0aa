"""Bytes that memory moves for a stack, layer by layer and depth-first.

An estimate from sizes alone: every layer that runs by itself reads its input and writes
its result, and so does every sequence; between the layers of a sequence values stay in
the cache. What a cache holds from one layer to the next by luck counts as memory's, and
what else a layer's own implementation costs is not counted at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from memplan.fusing.collapse import Stack, pools_of, sizes
from memplan.fusing.operations import Operation

COPIED = 64 << 20  # bytes of the tensor that is copied to calibrate: beyond most caches
ROUNDS = 5


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written: by layers one after the other, and depth-first."""

    layerwise: int
    depth_first: int

    @property
    def saved(self) -> int:
        return self.layerwise - self.depth_first


def traffic(stack: Stack, shape: Sequence[int], itemsize: int) -> Traffic:
    """Of one call of a stack on an input (n, c, h, w) of values of so many bytes."""
    planes, at = prod(shape[:2]) * itemsize, (shape[2], shape[3])
    layerwise = operands = 0
    for operation in stack.operations:
        before, at = at, _behind(operation, at)
        read = planes * prod(at) * operation.operands.count("tensor")
        layerwise += planes * (prod(before) + prod(at)) + read
        operands += read
    depth_first, at = operands, (shape[2], shape[3])
    for sequence in stack.sequences:
        before, at = at, sizes(pools_of(sequence.steps), *at)[-1]
        depth_first += planes * (prod(before) + prod(at))
    return Traffic(layerwise, depth_first)


def _behind(operation: Operation, plane: tuple[int, int]) -> tuple[int, int]:
    return plane if operation.pool is None else operation.pool.size(*plane)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy, on torch's threads: measured now."""
    import torch

    source = torch.ones(COPIED, dtype=torch.uint8)
    target = torch.ones_like(source)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * COPIED / best
