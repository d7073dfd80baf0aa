"""How much of a model's results is rounding: what they change by if all rounds anew.

Where results are what is left of large values that cancel, a difference that is large
beside them may be no more than rounding. As in Monte Carlo arithmetic (Parker, 1997),
the model runs with what its operators give changed at random, by about what rounding
may do; what its results then change by is the scale on which to compare others.
"""

from __future__ import annotations

from typing import Any

SAMPLES = 3
SEED = 7
# Their results are values that were there before.
MOVES = """
_to_copy arange cat clone constant_pad_nd copy copy_ detach embedding empty fill fill_
full gather index index_select masked_fill ones repeat roll scatter select slice sort
stack topk where zeros
"""
# Sums of many terms: their rounding is relative to the terms.
SUMS = "mm mv dot conv attention linear einsum sum mean fft"


def scales(run: Any, expected: list[Any]) -> list[list[float]]:
    """For each of `expected`, which `run` gives, what each of its tensors changes by,
    at most, where all rounds otherwise; 0.0 for what is no tensor of numbers.

    run: without arguments; random numbers that it draws must be the same each time.
    """
    from torch.utils._pytree import tree_leaves

    found = [[0.0] * len(tree_leaves(each)) for each in expected]
    for seed in range(SEED, SEED + SAMPLES):
        with _rounding(seed):
            changed = run()
        for row, one, other in zip(found, expected, changed, strict=False):
            pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
            for i, (left, right) in enumerate(pairs):
                row[i] = max(row[i], _largest_change(left, right))
    return found


def _largest_change(left: Any, right: Any) -> float:
    import torch

    if not isinstance(left, torch.Tensor) or left.shape != right.shape:
        return 0.0
    if not (left.is_floating_point() or left.is_complex()) or not left.numel():
        return 0.0
    wide = torch.complex128 if left.is_complex() else torch.float64
    change = (left.to(wide) - right.to(wide)).abs()
    return float(change[change.isfinite()].max()) if change.isfinite().any() else 0.0


def _rounding(seed: int) -> Any:
    """While it is entered, what operators compute is changed at random, a little."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    generators: dict[Any, Any] = {}

    def changed(name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return
        if value.device not in generators:
            generators[value.device] = torch.Generator(value.device).manual_seed(seed)
        noise = torch.empty_like(value, dtype=torch.float32)
        noise.normal_(generator=generators[value.device])
        size = value.abs()
        if any(word in name for word in SUMS.split()):
            size = size + value.square().mean().sqrt().nan_to_num(0.0, 0.0, 0.0)
        noise *= size.nan_to_num(0.0, 0.0, 0.0) * (torch.finfo(value.dtype).eps / 2)
        # Whole numbers are often exact: masks, counts, positions.
        value += torch.where(value == value.round(), 0.0, noise).to(value.dtype)

    class Rounding(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            returns = func._schema.returns
            views = any(r.alias_info and not r.alias_info.is_write for r in returns)
            if views or name in MOVES.split():
                return result
            taken = tree_leaves((args, kwargs))
            if any(
                isinstance(t, torch.Tensor) and t.is_floating_point() for t in taken
            ):
                for value in tree_leaves(result):
                    changed(name, value)
            return result

    return Rounding()
