"""Packing problems of any size, from several kinds of life and several of size.

A *kind* is what lifespans are like; sizes are drawn from another list, and so is the
alignment: no solver is to be judged by one kind alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.core.problem import Problem

Ints: TypeAlias = npt.NDArray[np.int64]
Spans: TypeAlias = tuple[Ints, Ints]

LARGEST = 1 << 24  # bytes of one buffer


def generated(
    kind: str, sizes: str, n: int, *, alignment: int = 512, seed: int = 0
) -> Problem:
    """n buffers, with lives of a `kind` of LIVES and `sizes` of SIZES.

    alignment: bytes, of all; sizes are not rounded up to it here.
    """
    rng = np.random.default_rng(seed)
    lower, upper = LIVES[kind](rng, n)
    return Problem.of(lower, upper, SIZES[sizes](rng, n), alignment=alignment)


def _uniform(rng: np.random.Generator, n: int) -> Spans:
    """Born at any time, alive for up to a fiftieth of it all."""
    life = rng.integers(1, max(n // 50, 2), n)
    lower = rng.integers(0, 2 * n, n)
    return lower, lower + life


def _geometric(rng: np.random.Generator, n: int) -> Spans:
    """Born one after the other, alive for 60 births in the mean."""
    lower = np.arange(n)
    return lower, lower + rng.geometric(1 / 60, n)


def _heavy(rng: np.random.Generator, n: int) -> Spans:
    """Lives over four decades, each as likely as the next."""
    life = np.ceil(np.exp(rng.uniform(0, np.log(max(n / 10, 10)), n))).astype(np.int64)
    lower = rng.integers(0, 2 * n, n)
    return lower, lower + life


def _nested(rng: np.random.Generator, n: int) -> Spans:
    """Training steps: what the way forward keeps, the way back frees in reverse, with
    short-lived buffers on both; a twentieth is kept to the end of the step."""
    step = min(n, 2000)
    lower, upper = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for first in range(0, n, step):
        count = min(step, n - first)
        begin = 4 * first
        half = 2 * count
        place = np.sort(rng.integers(0, half, count))
        kept = rng.random(count)
        short = place + rng.integers(1, 12, count)
        mirrored = 2 * half - place - rng.integers(0, 3, count)
        late = 2 * half - place
        at = np.where(kept < 0.5, place, np.where(kept < 0.75, place, late - 12))
        end = np.where(kept < 0.45, mirrored, short)
        end = np.where((kept >= 0.45) & (kept < 0.5), 2 * half, end)
        end = np.where(kept >= 0.75, at + rng.integers(1, 12, count), end)
        at = np.maximum(at, 0)
        lower[first : first + count] = begin + at
        upper[first : first + count] = begin + np.maximum(end, at + 1)
    return lower, upper


def _crowded(rng: np.random.Generator, n: int) -> Spans:
    """Few moments, very many alive at each."""
    ticks = 400
    lower = rng.integers(0, ticks, n)
    return lower, lower + rng.integers(1, ticks // 8, n)


LIVES: dict[str, Callable[[np.random.Generator, int], Spans]] = {
    "uniform": _uniform,
    "geometric": _geometric,
    "heavy": _heavy,
    "nested": _nested,
    "crowded": _crowded,
}


def _log_uniform(rng: np.random.Generator, n: int) -> Ints:
    return np.ceil(np.exp(rng.uniform(np.log(256), np.log(LARGEST), n))).astype(int)


def _flat(rng: np.random.Generator, n: int) -> Ints:
    return rng.integers(1, 1 << 20, n)


def _few(rng: np.random.Generator, n: int) -> Ints:
    """Eight values over two decades."""
    values = np.ceil(np.exp(rng.uniform(np.log(1 << 15), np.log(1 << 22), 8)))
    return rng.choice(values.astype(np.int64), n)


SIZES: dict[str, Callable[[np.random.Generator, int], Ints]] = {
    "log-uniform": _log_uniform,
    "flat": _flat,
    "few": _few,
}
