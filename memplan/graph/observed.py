"""What operators need beside their results, seen as they run alone.

Which buffers a convolution makes depends on the kernel that its library chooses for the
machine at hand, its sizes and layouts; no rule tells that for all of them.
"""

from __future__ import annotations

from typing import Any

from memplan.graph.liveness import storage_bytes
from memplan.graph.measure import activation_peak
from memplan.graph.program import Bound, Meta, Op, Program, Ranges, Ref, mapped
from memplan.graph.workspace import temporaries

OBSERVED = {"aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"}
OBSERVED |= {"windowed_conv"}


class Observed:
    """Temporaries of operators; each that has to be run runs once for its sizes."""

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def temporaries(self, program: Program, op: Op) -> int:
        """Bytes that live only while `op` runs: of convolutions on a CPU, as they were
        seen to be, in the first iteration of a loop (which pads) and in another; of
        all others by `memplan.graph.workspace`."""
        metas = [program.metas[name] for name in op.operands()]
        if op.key not in OBSERVED or metas[0].device != "cpu":
            return temporaries(program, op)
        first = {loop: (0, stop - at) for loop, (at, stop) in program.ranges.items()}
        try:
            return max(
                self._run(program, op, ranges) for ranges in (program.ranges, first)
            )
        except Exception:  # the program may not come so far either
            return temporaries(program, op)

    def _run(self, program: Program, op: Op, ranges: Ranges) -> int:
        metas = {name: _at(program, name, ranges) for name in op.operands()}
        numbers = mapped(
            (op.args, op.kwargs),
            lambda at: at.at(ranges) if isinstance(at, Bound) else at,
        )
        key = repr((op.key, numbers, list(metas.values())))
        if key not in self._seen:
            self._seen[key] = _seen(op, numbers, metas)
        return self._seen[key]


def _seen(op: Op, numbers: Any, metas: dict[str, Meta]) -> int:
    import torch

    given = {
        name: torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype).zero_()
        for name, meta in metas.items()
    }
    args, kwargs = mapped(
        numbers, lambda at: given[at.name] if isinstance(at, Ref) else at
    )
    with torch.no_grad():
        result = op.target(*args, **kwargs)
        own = Meta(tuple(result.shape), result.stride(), result.dtype, "cpu")
        del result
        peak = activation_peak(lambda: op.target(*args, **kwargs))
    return max(0, peak - storage_bytes(own))


def _at(program: Program, name: str, ranges: Ranges) -> Meta:
    """What a value is while each loop covers the range given."""
    meta: Meta = program.metas[name]
    shape = list(meta.shape)
    for dim, window in program.moving.get(name, {}).items():
        low, high = window.at(ranges)
        shape[dim] = high - low
    return meta._replace(shape=tuple(shape))
