"""Measure a model: its time, its activations, and the rounding in its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.chunking.inputs import Inputs
from memplan.graph.measure import MEMORY, Run, events_of, timed

LEAST, REPEATS, MOST = 3, 5, 25  # pairs: of slow models, of others, of short ones
ENOUGH_SECONDS = 10.0  # of timing one model, after which there are only LEAST
SHORT_SECONDS = 0.2  # within which there are more than REPEATS

MARK = "memplan: "


def levels_at(model: nn.Module, inputs: Inputs, paths: list[str]) -> dict[str, int]:
    """The most bytes of activations that are live when each submodule is called.

    0 on devices other than the CPU, and for submodules that are never called.
    """

    def mark(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            with torch.profiler.record_function(MARK + path):
                pass

        return hook

    handles = [
        model.get_submodule(path).register_forward_pre_hook(mark(path))
        for path in paths
    ]
    levels = dict.fromkeys(paths, 0)
    now = 0
    try:
        with torch.no_grad():
            snapshot = inputs.snapshot(model)
            events = events_of(lambda: inputs.run(model))
            snapshot.restore()
    finally:
        for handle in handles:
            handle.remove()
    for event in events:
        name = event.name()
        if name == MEMORY:
            now += event.nbytes()
        elif name.startswith(MARK):
            path = name.removeprefix(MARK)
            levels[path] = max(levels[path], now)
    return levels


@dataclass(frozen=True)
class Paired:
    """Seconds of two runs that alternated, and the ratio, second over first.

    ratio: of the medians over all pairs. samples: how many pairs.
    """

    first: float
    second: float
    ratio: float
    samples: int


def run_seconds(run: Run, device: str = "cpu") -> float:
    """Seconds of one run, until the device is done with it."""
    with torch.no_grad():
        return timed(run, device)[1]


def paired(first: Run, second: Run, device: str = "cpu") -> Paired:
    """Time two runs in alternation, after one warm-up run of each.

    There are REPEATS pairs, fewer of slow runs and more of short ones.
    """
    began = time.perf_counter()
    for run in (first, second):
        run_seconds(run, device)
    times: list[tuple[float, float]] = []
    while len(times) < MOST:
        times.append((run_seconds(first, device), run_seconds(second, device)))
        took = time.perf_counter() - began
        enough = ENOUGH_SECONDS if len(times) < REPEATS else SHORT_SECONDS
        if len(times) >= LEAST and took > enough:
            break
    one, other = (median(each) for each in zip(*times, strict=True))
    return Paired(one, other, other / one, len(times))


def tolerance_of(results: object) -> float:
    """The largest relative error at which results count as the same.

    It follows the coarsest dtype among them: 1e-12 for float64, 1e-5 for float32, and
    ten rounding errors for coarser dtypes.
    """
    dtypes = {leaf.dtype for leaf in tree_leaves(results) if isinstance(leaf, Tensor)}
    coarsest: float = max(
        (torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point),
        default=0.0,
    )
    if coarsest > 1e-6:
        return max(1e-5, 10 * coarsest)
    return 1e-5 if coarsest > 1e-12 else 1e-12


# How much of a result is rounding. Where large values cancel, a difference that is
# large relative to the result may be rounding alone. As in Monte Carlo arithmetic
# (Parker, 1997), the model runs with random changes of about one rounding error in the
# results of its operators; the change of its own results is the scale to compare with.
SAMPLES = 3
SEED = 7
# These operators only move values; their results have no rounding.
MOVES = """
_to_copy arange cat clone constant_pad_nd copy copy_ detach embedding empty fill fill_
full gather index index_select masked_fill ones repeat roll scatter select slice sort
stack topk where zeros
"""
# These operators sum many terms; their rounding is relative to the terms.
SUMS = "mm mv dot conv attention linear einsum sum mean fft"


def scales(
    run: Callable[[], Sequence[object]], expected: Sequence[object]
) -> list[list[float]]:
    """How much rounding changes each tensor of each expected result, at most.

    run: returns what `expected` holds, and draws the same random numbers each time.
    0.0 for leaves that are no floating-point or complex tensors.
    """
    found = [[0.0] * len(tree_leaves(each)) for each in expected]
    for seed in range(SEED, SEED + SAMPLES):
        with _Rounding(seed):
            changed = run()
        for row, one, other in zip(found, expected, changed, strict=False):
            pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
            for i, (left, right) in enumerate(pairs):
                row[i] = max(row[i], _largest_change(left, right))
    return found


def _largest_change(left: object, right: object) -> float:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return 0.0
    if left.shape != right.shape or not left.numel():
        return 0.0
    if not (left.is_floating_point() or left.is_complex()):
        return 0.0
    wide = torch.complex128 if left.is_complex() else torch.float64
    change = (left.to(wide) - right.to(wide)).abs()
    return float(change[change.isfinite()].max()) if change.isfinite().any() else 0.0


class _Rounding(TorchDispatchMode):  # type: ignore[misc]
    """While active, results of operators change at random by about one rounding."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        returns = func._schema.returns
        views = any(r.alias_info and not r.alias_info.is_write for r in returns)
        if views or name in MOVES.split():
            return result
        if any(map(_is_floating, tree_leaves((args, kwargs)))):
            for value in filter(_is_floating, tree_leaves(result)):
                self._change(name, value)
        return result

    def _change(self, name: str, value: Tensor) -> None:
        """Change a result in place."""
        device = value.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        noise = torch.empty_like(value, dtype=torch.float32)
        noise.normal_(generator=self._generators[device])
        size = value.abs()
        if any(word in name for word in SUMS.split()):
            size = size + value.square().mean().sqrt().nan_to_num(0.0, 0.0, 0.0)
        noise *= size.nan_to_num(0.0, 0.0, 0.0) * (torch.finfo(value.dtype).eps / 2)
        # Whole numbers are often exact: masks, counts, positions.
        value += torch.where(value == value.round(), 0.0, noise).to(value.dtype)


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and bool(value.is_floating_point())
