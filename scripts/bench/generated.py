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


def _crowded(rng: np.random.Generator, n: int) -> Spans:
    """Few moments, very many alive at each."""
    ticks = 400
    lower = rng.integers(0, ticks, n)
    return lower, lower + rng.integers(1, ticks // 8, n)


LIVES: dict[str, Callable[[np.random.Generator, int], Spans]] = {
    "uniform": _uniform,
    "geometric": _geometric,
    "heavy": _heavy,
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
