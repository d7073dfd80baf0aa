"""Attention masks that are known before the model runs.

An export materialises masks that the model avoids: a causal mask instead of
`is_causal`, and a mask that hides nothing. Kernels are faster without them, and slices
of queries need none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from memplan.graph.program import Meta, Op, Program, Ref, is_pointwise, mapped

SMALL = 1 << 16  # elements: smaller values are computed whole
AT_ONCE = 1 << 20  # elements of a larger value that are computed at a time

# By element like those that torch marks so.
BY_ELEMENT = {"aten.__and__", "aten.__or__", "aten.__xor__", "aten._to_copy"}
BY_ELEMENT |= {"aten.to", "aten.where"}


class Masks:
    """The values of a program that depend only on their operators."""

    def __init__(self, program: Program) -> None:
        self._program = program
        unknown = {*program.inputs, *program.constants}
        self._makers: dict[str, Op] = {}
        for op in program.ops:
            if not isinstance(op, Op) or _random(op):
                continue
            if unknown.isdisjoint(op.operands()) and all(
                name in self._makers for name in op.operands()
            ):
                self._makers[op.name] = op
        self._values: dict[str, Tensor] = {}
        self._found: dict[str, str | None] = {}

    def hides(self, name: str) -> str | None:
        """What a mask hides: "nothing" or "later keys"; None for anything else, and if
        it is unknown."""
        if name not in self._found:
            try:
                self._found[name] = self._hidden(name)
            except NotImplementedError:  # an operator that does not run by rows
                self._found[name] = None
            self._values.clear()
        return self._found[name]

    def _hidden(self, name: str) -> str | None:
        meta = self._program.metas[name]
        if name not in self._makers or len(meta.shape) < 2 or not meta.elements:
            return None
        count, keys = meta.shape[-2:]
        rows = max(1, AT_ONCE * count // meta.elements)
        possible = {"nothing", "later keys"}
        with torch.no_grad():
            for start in range(0, count, rows):
                stop = min(count, start + rows)
                shown = _shown(self._rows(name, start, stop))
                if shown is None:
                    return None
                later = torch.arange(keys, device=shown.device)
                here = torch.arange(start, stop, device=shown.device)
                if not bool(shown.all()):
                    possible.discard("nothing")
                if not bool((shown == (later <= here[:, None])).all()):
                    possible.discard("later keys")
                if not possible:
                    return None
        return "nothing" if "nothing" in possible else "later keys"

    def _rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a value: of its dimension -2, if it has several."""
        meta = self._program.metas[name]
        if not self._small(name):
            return self._large_rows(self._makers[name], meta, start, stop)
        value = self._whole(name)
        if len(meta.shape) < 2 or meta.shape[-2] == 1:
            return value
        return value.narrow(-2, start, stop - start)

    def _large_rows(self, op: Op, meta: Meta, start: int, stop: int) -> Tensor:
        count = stop - start if meta.shape[-2] != 1 else 1
        sizes = [*meta.shape[:-2], count, meta.shape[-1]]
        if op.key == "aten.full":
            return op.target(sizes, *op.args[1:], **op.kwargs)
        if op.key == "aten.expand":
            return self._rows(op.args[0].name, start, stop).expand(sizes)
        if op.key in ("aten.unsqueeze", "aten.reshape"):
            source = op.args[0].name
            if self._program.metas[source].shape[-2:] != meta.shape[-2:]:
                raise NotImplementedError(op.key)
            return self._rows(source, start, stop).reshape(sizes)
        if op.key in ("aten.tril", "aten.triu"):
            diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
            return op.target(self._rows(op.args[0].name, start, stop), diagonal + start)
        if not (op.key in BY_ELEMENT or is_pointwise(op)):
            raise NotImplementedError(op.key)
        # Operands are broadcast from the last dimension on: rows are rows in each.
        return self._run(op, lambda other: self._rows(other, start, stop))

    def _whole(self, name: str) -> Tensor:
        if name not in self._values:
            if not self._small(name):
                raise NotImplementedError(name)
            self._values[name] = self._run(self._makers[name], self._whole)
        return self._values[name]

    def _small(self, name: str) -> bool:
        meta = self._program.metas[name]
        every = (meta,) if isinstance(meta, Meta) else meta
        return all(each.elements <= SMALL for each in every)

    def _run(self, op: Op, value: Callable[[str], Tensor]) -> Tensor:
        args, kwargs = mapped(
            (op.args, op.kwargs),
            lambda at: value(at.name) if isinstance(at, Ref) else at,
        )
        return op.target(*args, **kwargs)


def _shown(mask: Tensor) -> Tensor | None:
    """Where a mask shows keys; None if it does more than hide the others."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.dtype.is_floating_point:
        return None
    hidden = mask <= torch.finfo(mask.dtype).min / 2  # their weights are exactly 0
    return ~hidden if bool((hidden | (mask == 0)).all()) else None


def _random(op: Op) -> bool:
    tags = getattr(op.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or "empty" in op.key
