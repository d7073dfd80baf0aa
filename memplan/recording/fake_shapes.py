"""Operators whose results' shapes depend on values: as large as they can get."""

from __future__ import annotations

from typing import Any


def at_most(torch: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of `func` where every element is selected, or different; else None.

    For nonzero, masked_select, indexing by masks, and unique.
    """
    aten = torch.ops.aten
    if func is aten.nonzero.default:
        return _places(torch, args[0])
    if func is aten.masked_select.default:
        first, mask = torch.broadcast_tensors(args[0], args[1])
        return first.new_empty((mask.numel(),))
    if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
        indices: list[Any] = []
        for index in args[1]:
            masks = index is not None and index.dtype in (torch.bool, torch.uint8)
            if masks:
                indices += _places(torch, index).unbind(1)
            else:
                indices.append(index)
        return func(args[0], indices, *args[2:], **kwargs)
    if func in (aten._unique2.default, aten._unique.default):
        return _unique(args, kwargs, len(func._schema.returns))
    return None


def _places(torch: Any, mask: Any) -> Any:
    return mask.new_empty((mask.numel(), mask.dim()), dtype=torch.int64)


def _unique(args: Any, kwargs: dict[str, Any], results: int) -> Any:
    values = args[0]
    names = ("sorted", "return_inverse", "return_counts")
    told = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    long = values.new_empty((0,)).long
    inverse = values.shape if told.get("return_inverse") else (0,)
    counts = (values.numel(),) if told.get("return_counts") else (0,)
    made = (
        values.new_empty((values.numel(),)),
        long().new_empty(inverse),
        long().new_empty(counts),
    )
    return made[:results]
