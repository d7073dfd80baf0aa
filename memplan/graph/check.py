"""Compare what replaces a model with the model: inputs, effects, errors, tolerance."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from memplan.errors import InputError
from memplan.graph.call import Inputs, repeats
from memplan.graph.nest import leaves_of, objects_of, overlapping, unknown
from memplan.graph.reach import Attributes

TINY = 1e-30  # what values are compared with where all of them are 0

Norm = Callable[[Tensor], float]
"""The size of a tensor that has elements, all finite."""


def largest(values: Tensor) -> float:
    return float(values.abs().max())


def mean(values: Tensor) -> float:
    return float(values.abs().mean())


def relative_error(
    expected: object,
    found: object,
    least: Sequence[float] | None = None,
    norm: Norm = largest,
) -> float:
    """The largest difference of two nests of tensors, over the largest value there.

    least: of each leaf, what it is compared with at least, in place of its largest
    value. norm: of a leaf's differences and values, in place of the largest. 0.0 for
    the same bits; NaN and infinities must stand in the same places, otherwise, and
    where shapes, dtypes or plain values differ, it is infinite.
    """
    left, right = leaves_of(expected), leaves_of(found)
    if len(left) != len(right):
        return float("inf")
    least = least or [TINY] * len(left)
    pairs = zip(left, right, least, strict=True)
    return max((_difference(a, b, scale, norm) for a, b, scale in pairs), default=0.0)


def _difference(expected: object, found: object, least: float, norm: Norm) -> float:
    if not isinstance(expected, torch.Tensor):
        return 0.0 if _equal(expected, found) else float("inf")
    strided = expected.layout is torch.strided  # torch compares no others
    if not (isinstance(found, torch.Tensor) and strided and _alike(expected, found)):
        return float("inf")
    if torch.equal(expected, found) or not expected.numel():
        return 0.0
    if expected.is_complex():
        one, other = (torch.view_as_real(x.resolve_conj()) for x in (expected, found))
        return _difference(one, other, least, norm)
    if not expected.is_floating_point():
        return float("inf")
    return _of_finite(expected.double(), found.double(), least, norm)


def _alike(left: Tensor, right: Tensor) -> bool:
    kinds = (
        (each.shape, each.dtype, each.device, each.layout) for each in (left, right)
    )
    return next(kinds) == next(kinds)


def _equal(left: object, right: object) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError, TypeError):
        return False  # arrays, and objects that hold tensors


def _of_finite(left: Tensor, right: Tensor, least: float, norm: Norm) -> float:
    finite = left.isfinite()
    if not bool((finite == right.isfinite()).all()):
        return float("inf")
    # NaN becomes 0 here, and infinities the largest numbers of their sign.
    odd, other = left[~finite].nan_to_num(), right[~finite].nan_to_num()
    if not bool((odd == other).all()):
        return float("inf")
    left, right = left[finite], right[finite]
    if not left.numel():
        return 0.0
    return norm(left - right) / max(norm(left), least)


def other_inputs(inputs: list[object], seed: int) -> list[object]:
    """Inputs of the same shapes and layouts with other values: noise for floating-point
    tensors, the same values in another order for others, which may be indices. A tensor
    that is given twice is one again."""
    generator = torch.Generator().manual_seed(seed)
    changed: list[object] = []
    for value, first in zip(inputs, repeats(inputs) or range(len(inputs)), strict=True):
        if first < len(changed):
            changed.append(changed[first])
        elif not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            changed.append(value)
        elif value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            changed.append(lying_as(value, noise))
        else:
            order = torch.randperm(value.numel(), generator=generator)
            flat = value.reshape(-1)[order.to(value.device)]
            changed.append(lying_as(value, flat.reshape(value.shape)))
    return changed


def lying_as(value: Tensor, made: Tensor) -> Tensor:
    """Elements of `made`, of the shape of `value`, which lie as those do. Where several
    of these share memory, the first of `made` are taken."""
    shape, strides = value.shape, value.stride()
    if not value.numel() or not overlapping(shape, strides):
        empty = torch.empty_strided(
            shape, strides, dtype=value.dtype, device=value.device
        )
        return empty.copy_(made)
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    flat = made.to(value).reshape(-1)
    base = flat.repeat(reach // len(flat) + 1)[: reach + 1].clone()
    return base.as_strided(shape, strides)


def tolerance_of(results: object) -> float:
    """The largest relative error at which results count as the same.

    It follows the coarsest dtype among them, of complex ones that of their parts: 1e-12
    for float64, 1e-5 for float32, and ten rounding errors for coarser dtypes, but at
    most 2 ** -5.
    """
    dtypes = {leaf.dtype for leaf in leaves_of(results) if isinstance(leaf, Tensor)}
    inexact = (each for each in dtypes if each.is_floating_point or each.is_complex)
    coarsest: float = max((torch.finfo(each).eps for each in inexact), default=0.0)
    if coarsest > 1e-6:
        return float(min(10 * coarsest, 2.0**-5))
    return 1e-5 if coarsest > 1e-12 else 1e-12


NOISE_SEED = 20240511


def results_of(
    inputs: Inputs, model: nn.Module, run: Callable[..., object], required: int = 1
) -> list[object]:
    """What `run` returns for these inputs, and for noise, with the same random numbers
    each time; what it writes to inputs and to the buffers of `model` is put back.

    It may reject noise, which need not be valid indices, say; then there is one result.
    required: results without which its exception propagates.
    """
    snapshot = Snapshot([*inputs.leaves(), *model.buffers()])
    with torch.no_grad(), torch.random.fork_rng(devices_drawn()):
        torch.manual_seed(NOISE_SEED)
        try:
            found = [inputs.run(run)]
            snapshot.restore()
            leaves, spec = tree_flatten((inputs.args, inputs.kwargs))
            others = tree_unflatten(other_inputs(leaves, NOISE_SEED), spec)
            try:
                found.append(Inputs(*others).run(run))
            except Exception:
                if required > 1:
                    raise
        finally:
            snapshot.restore()
    return found


def devices_drawn() -> list[int] | None:
    """The GPUs whose random states a run may change, for torch's `fork_rng`: all
    (None) if any is in use."""
    return None if torch.cuda.is_initialized() else []


class Snapshot:
    """Copies of tensors that restore what runs write to."""

    def __init__(self, tensors: Iterable[object]) -> None:
        self._held = [
            (tensor, tensor.detach().clone())
            for tensor in tensors
            if isinstance(tensor, Tensor)
            and not (tensor.is_inference() or tensor.is_meta or tensor.is_nested)
        ]
        self._versions = [tensor._version for tensor, _ in self._held]

    def restore(self) -> None:
        """Write back what has changed since the snapshot, or the last restore."""
        with torch.no_grad():
            for i, (tensor, copy) in enumerate(self._held):
                if tensor._version != self._versions[i]:
                    tensor.copy_(copy)
                    self._versions[i] = tensor._version

    def changed(self) -> list[Tensor]:
        """The tensors that were written to, also by what raises no version, as batch
        normalisation; all are restored if there are any."""
        held = zip(self._held, self._versions, strict=True)
        found = [
            tensor
            for (tensor, copy), version in held
            if tensor._version != version
            or not torch.equal(tensor.nan_to_num(), copy.nan_to_num())
        ]
        if found:
            self._versions = [-1 for _ in self._held]
            self.restore()
        return found


class SideEffectsError(InputError):
    """The model changes something during inference, or its results change."""


NOTES = "it changes its own attributes, or what else its code reaches, during inference"
KEEPS = "it returns an object that it keeps, or that it was given"


def without_effects(
    model: nn.Module, inputs: Inputs, run: Callable[[], object]
) -> object:
    """What `run` of the model gives on `inputs`, whose tensors are the caller's copies.

    It runs twice: what the model keeps at its first run, and only then, is no effect.
    Raises SideEffectsError, with everything as it was before, if it changes what it can
    reach, its arguments among it, prints, or returns other results, or an object that
    outlives the call.
    """
    before, given, drawn = (
        Attributes(model),
        Snapshot(inputs.leaves()),
        _random_states(),
    )
    buffers, passed = Snapshot(_written(model, before)), Attributes(model, inputs)
    with _Heard() as heard, _Heard("stderr") as errors:
        first = run()
        said, settled, states = heard.text(), Attributes(model), _random_states()
        told = errors.text()
        result = run()
    again = heard.text() != said or errors.text() != told
    reason = "it prints during inference" if again else ""
    if _random_states() != states:
        reason = "it draws random numbers"
    elif relative_error(first, result) > tolerance_of(result):
        odd = unknown(leaves_of(result))
        reason = odd or "its results change from call to call"
    elif objects_of(first).keys() & objects_of(result):
        reason = KEEPS
    if written := {id(each) for each in buffers.changed()}:
        names = [name for name, each in model.named_buffers() if id(each) in written]
        which = f"buffer '{names[0]}'" if names else "tensors"
        reason = f"it writes to its {which} during inference"
    elif given.changed():
        reason = "it writes to its inputs"
    elif passed.changed():
        reason = "it changes its arguments"
    elif settled.changed():
        reason = NOTES
    if reason:
        before.restore()
        passed.restore()
        _put_back(drawn)
        raise SideEffectsError(reason)
    sys.stdout.write(said)
    sys.stderr.write(told)
    return result


def _written(model: nn.Module, reached: Attributes) -> Iterable[Tensor]:
    """The tensors that a forward may well write to, each once."""
    loose = [each for each in reached.tensors if not isinstance(each, nn.Parameter)]
    return {id(each): each for each in [*model.buffers(), *loose]}.values()


@contextlib.contextmanager
def undone(
    model: nn.Module, inputs: Inputs | None = None
) -> Iterator[Callable[[], None]]:
    """What the model changes or prints within is put back, and not said; what it yields
    puts attributes back before that.

    inputs: what it is called with, if that is the caller's.
    """
    before, drawn = Attributes(model), _random_states()
    given = inputs.leaves() if inputs else []
    passed = Attributes(model, inputs) if inputs else before
    buffers = Snapshot([*_written(model, before), *given])
    try:
        with _Heard(tells=False), torch.random.fork_rng(devices=[]):
            yield before.restore
    finally:
        buffers.changed()
        before.restore()
        passed.restore()
        _put_back(drawn)


def aloud(progress: Callable[[str], None]) -> Callable[[str], None]:
    """`progress`, which may print also where the model may not."""
    output = sys.stdout

    def tell(text: str) -> None:
        with contextlib.redirect_stdout(output):
            progress(text)

    return tell


States = tuple[list[int], tuple[Any, ...], dict[str, Any]]


def _random_states() -> States:
    """The states of torch's, Python's and NumPy's random numbers."""
    legacy = np.random.get_state(legacy=False)
    inner = {**legacy["state"], "key": legacy["state"]["key"].tolist()}
    found = {**legacy, "state": inner}
    return torch.get_rng_state().tolist(), random.getstate(), found


def _put_back(states: States) -> None:
    """Restore Python's and NumPy's states."""
    random.setstate(states[1])
    np.random.set_state(states[2])


class _Heard(io.TextIOBase):
    """While active, takes what this thread writes to `sys.stdout`, or `stream`.

    tells: whether to write it after all if an exception ends it.
    """

    def __init__(self, stream: str = "stdout", tells: bool = True) -> None:
        self._stream, self._tells = stream, tells

    def __enter__(self) -> _Heard:
        self._thread, self._lines = threading.get_ident(), io.StringIO()
        self._before = getattr(sys, self._stream)
        setattr(sys, self._stream, self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        setattr(sys, self._stream, self._before)
        if kind is not None and self._tells:
            self._before.write(self.text())

    def write(self, text: str) -> int:
        here = threading.get_ident() == self._thread
        return (self._lines if here else self._before).write(text)

    def flush(self) -> None:
        self._before.flush()

    def text(self) -> str:
        """What was written so far."""
        return self._lines.getvalue()


# How much of a result is rounding. Where large values cancel, a difference that is
# large relative to the result may be rounding alone. As in Monte Carlo arithmetic
# (Parker, 1997), the model runs with random changes of about one rounding error in the
# results of its operators; the change of its own results is the scale to compare with.
SAMPLES = 3
# A difference may be so many times the measured rounding: the largest, and the mean,
# which hangs less on chance. Where rounding decides on a few values, so that these
# differ wholly, the mean tells whether the others differ too.
ROUNDINGS: dict[Norm, int] = {largest: 10, mean: 3}
Scales = dict[Norm, list[list[float]]]
"""By each norm, a scale for each tensor of each result."""
ROUNDING_SEED = 7
# These operators only move values; their results have no rounding.
MOVES = """
_to_copy arange cat clone constant_pad_nd copy copy_ detach embedding empty fill fill_
full gather index index_select masked_fill ones repeat roll scatter select slice sort
stack topk where zeros
"""
# These operators sum many terms; their rounding is relative to the terms.
SUMS = "mm mv dot conv attention linear einsum sum mean fft"


def scales(
    run: Callable[[], Sequence[object]],
    expected: Sequence[object],
) -> Scales:
    """How much rounding changes each tensor of each expected result, at most, by each
    of the norms of ROUNDINGS.

    run: returns what `expected` holds, and draws the same random numbers each time.
    0.0 for leaves that are no floating-point or complex tensors.
    """
    found = {
        norm: [[0.0] * len(tree_leaves(each)) for each in expected]
        for norm in ROUNDINGS
    }
    for seed in range(ROUNDING_SEED, ROUNDING_SEED + SAMPLES):
        with _Rounding(seed):
            changed = run()
        for at, (one, other) in enumerate(zip(expected, changed, strict=False)):
            leaves = tree_leaves(one), tree_leaves(other)
            if len(leaves[0]) != len(leaves[1]):
                continue  # rounding decided which of its results a model gives
            for i, (left, right) in enumerate(zip(*leaves, strict=True)):
                change = _change(left, right)
                for norm, rows in found.items() if change is not None else ():
                    rows[at][i] = max(rows[at][i], norm(change))
    return found


def least_scales(
    run: Callable[[], Sequence[object]], expected: Sequence[object], tolerance: float
) -> Scales:
    """With which a difference of ROUNDINGS times what rounding changes is just within
    tolerance, for results that cancel or that rounding decides. See `scales`."""
    return {
        norm: [
            [max(TINY, ROUNDINGS[norm] / tolerance * each) for each in row]
            for row in rows
        ]
        for norm, rows in scales(run, expected).items()
    }


def scaled_error(
    expected: Sequence[object], found: Sequence[object], least: Scales
) -> float:
    """The largest relative error of results with these least scales."""
    return max(
        relative_error(one, other, row, norm)
        for norm, rows in least.items()
        for one, other, row in zip(expected, found, rows, strict=False)
    )


def _change(left: object, right: object) -> Tensor | None:
    """The finite changes of a tensor of inexact numbers, if there are any."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    if left.shape != right.shape or not left.numel():
        return None
    if torch.strided not in (left.layout, right.layout):
        return None
    if not (left.is_floating_point() or left.is_complex()):
        return None
    wide = torch.complex128 if left.is_complex() else torch.float64
    change = (left.to(wide) - right.to(wide)).abs()
    return change[change.isfinite()] if change.isfinite().any() else None


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
                for part in value.unbind() if value.is_nested else (value,):
                    self._change(name, part)
        return result

    def _change(self, name: str, value: Tensor) -> None:
        """Change a result in place."""
        if value.is_complex():
            value = torch.view_as_real(value)
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
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    whole = value.is_complex() and not value.is_conj()
    return bool(value.is_floating_point() or whole)
