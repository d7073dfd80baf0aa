"""MiniMalloc's CSV, written: a problem, or a problem with its solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.problem import Gaps, Problem
from memplan.errors import InputError
from memplan.files import PathLike, atomic_write

_ROWS_AT_A_TIME = 1 << 16


def write_minimalloc(
    problem: Problem, path: PathLike, offsets: Int64Array | None = None
) -> None:
    """Write `problem` to `path` as MiniMalloc's CSV, atomically.

    offsets: bytes, shape (n,), a solution for the `offset` column; without them the
        column holds the fixed offsets, -1 where a buffer may go anywhere, and is
        left out if all may. `alignment` is left out where all are 1, and `gaps` where
        there are none.

    Raises InputError for what the format cannot say: wrap-around lifespans, labels
    with commas or line breaks, and labels that are not unique.
    """
    labels = _labels(problem)
    if problem.wraps.any():
        name = labels[int(np.argmax(problem.wraps))]
        raise InputError(
            f"buffer {name} wraps around the end of the step, which MiniMalloc's CSV "
            "cannot say; convert the trace with --step all, or keep the plan's own JSON"
        )
    columns: dict[str, npt.NDArray[Any]] = {
        "lower": problem.lower,
        "upper": problem.upper,
        "size": problem.size,
    }
    if len(problem) and problem.alignment.max() > 1:
        columns["alignment"] = problem.alignment
    if problem.gaps is not None:
        columns["gaps"] = np.array(_gap_fields(problem, problem.gaps), dtype=object)
    if offsets is not None:
        if offsets.shape != problem.size.shape or offsets.dtype.kind not in "iu":
            kind = f"{offsets.dtype} of shape {offsets.shape}"
            raise InputError(f"offsets are {kind}; need {len(problem)} integers")
        columns["offset"] = offsets
    elif len(problem) and problem.fixed.max() >= 0:
        columns["offset"] = problem.fixed
    with atomic_write(path) as stream:
        stream.write(f"{','.join(['id', *columns])}\n".encode())
        for begin in range(0, len(problem), _ROWS_AT_A_TIME):
            end = begin + _ROWS_AT_A_TIME
            texts = [map(str, c[begin:end].tolist()) for c in columns.values()]
            rows = zip(labels[begin:end], *texts, strict=True)
            stream.write("".join([f"{','.join(row)}\n" for row in rows]).encode())


def _gap_fields(problem: Problem, gaps: Gaps) -> list[str]:
    """A field per buffer: ``lower-upper`` or ``lower-upper@begin:end`` for each gap."""
    forms = {2: "{}-{}", 4: "{}-{}@{}:{}"}
    rows = gaps.by_buffer(len(problem))
    return [" ".join(forms[len(gap)].format(*gap) for gap in row) for row in rows]


def _labels(problem: Problem) -> list[str]:
    if problem.labels is None:
        return [str(i) for i in range(len(problem))]
    for i, label in enumerate(problem.labels):
        if label.isalnum():
            continue
        surrogate = any("\ud800" <= c <= "\udfff" for c in label)
        if surrogate or not {",", "\n", "\r"}.isdisjoint(label):
            raise InputError(
                f"buffer {i}: its label {label!r} cannot be an id in MiniMalloc's CSV; "
                "take out commas, line breaks and lone surrogates"
            )
    if len(set(problem.labels)) < len(problem):
        raise InputError("labels are not unique, and ids in MiniMalloc's CSV must be")
    return list(problem.labels)
