"""Prices by size that say what an access costs where several cores share a layer.

Of each tensor only the last memory is spread over the cores: it costs what a core's
part of it would, or, of the tensor that they share, what sending to all costs a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from memplan.blocking.design.parallel import SHARED
from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.layer import Tensor

Curves = Mapping[Tensor, Curve]


def spread(curves: Curves, cores: int, split: str, wires: float) -> dict[Tensor, Curve]:
    """At most what each size costs as a last memory, or as another one. wires: pJ that
    an access to a shared one costs at least."""
    shared = SHARED[split]
    return {
        tensor: _sent(curve, cores, wires)
        if tensor is shared
        else replace(curve, nbytes=tuple(n * cores for n in curve.nbytes))
        for tensor, curve in curves.items()
    }


def from_size(own: Curve, last: Curve, nbytes: int) -> Curve:
    """At most what each size costs where the last memory has at least so many bytes:
    smaller ones are not it.

    own, last: what a memory costs as it is, and at most where it may be the last one.
    Prices of smaller ones end where those of larger ones begin: they never fall.
    """
    if nbytes <= 1:
        return last
    price = last.on_chip(nbytes)
    points = {
        size: pj
        for size, pj in zip(own.nbytes, own.pj, strict=True)
        if size < nbytes and pj < price
    }
    points.update((size, price) for size in _where(own, price) if size < nbytes)
    points[float(nbytes)] = price
    points.update((size, last.on_chip(size)) for size in last.nbytes if size > nbytes)
    knots = sorted(points)
    return replace(own, nbytes=tuple(knots), pj=tuple(points[n] for n in knots))


def _sent(curve: Curve, cores: int, wires: float) -> Curve:
    """The cheaper of a core's own memory, and the last one that all share."""
    sizes = {*curve.nbytes, *_where(curve, wires), *_where(curve, wires / cores)}
    knots = sorted(sizes)
    pj = []
    for nbytes in knots:
        own = curve.on_chip(nbytes)
        pj.append(min(own, max(own, wires) / cores))
    return replace(curve, nbytes=tuple(knots), pj=tuple(pj))


def _where(curve: Curve, pj: float) -> Iterator[float]:
    """The size at which an access costs so much."""
    if curve.pj[0] < pj < curve.pj[-1]:
        at = np.interp(math.log(pj), np.log(curve.pj), np.log(curve.nbytes))
        yield math.exp(float(at))
