"""Array types, and integer arrays from callers."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.errors import InputError

Int64Array: TypeAlias = npt.NDArray[np.int64]
Float64Array: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int64Like: TypeAlias = npt.ArrayLike  # what `int64` takes


def int64(name: str, values: Int64Like, n: int | None = None) -> Int64Array:
    """A new 1-D int64 array, shape (n,); a scalar is broadcast if n is given.

    Raises InputError, calling the array `name`, for floats, overflow and other shapes.
    """
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name}: not an array of integers ({error})") from None
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
        raise InputError(f"{name}: {int(array.max())} does not fit in 63 bits")
    if array.dtype.kind not in "iu":
        hint = " (integers beyond 2^63?)" if array.dtype.kind == "O" else ""
        raise InputError(f"{name}: expected integers, got {array.dtype}{hint}")
    if n is not None and array.ndim == 0:
        return np.full(n, array, dtype=np.int64)
    if array.ndim != 1 or (n is not None and len(array) != n):
        want = "one dimension" if n is None else f"{n} entries"
        raise InputError(f"{name}: expected {want}, got shape {array.shape}")
    return np.array(array, dtype=np.int64)
