"""Traces, plans and snapshots as arguments of the commands that report."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan.errors import InputError, UsageError
from memplan.formats.sniff import Input, Kind, opened

if TYPE_CHECKING:
    from memplan.core.plan import Plan
    from memplan.trace.trace import Trace

_COLUMNS = (
    *("time_ns", "action", "mark", "address", "size", "requested_size"),
    *("thread", "device", "stream", "stack"),
)


def trace_or_plan(source: Input, device: int | None = None) -> Trace | Plan:
    """A trace, a snapshot's trace, or a plan; device: of a snapshot, which GPU's.

    Raises UsageError for a bare problem, and a device where there is none.
    """
    with opened(source) as file:
        if file.kind is Kind.PLAN:
            from memplan.core.planfile import read_plan

            if device is not None:
                raise UsageError(f"--device is for snapshots; {file.path} is a plan")
            return read_plan(file)
        from memplan.trace.read import read_input
        from memplan.trace.trace import Trace

        found = read_input(file, set(_COLUMNS), device)
        if isinstance(found, Trace):
            return found
        raise UsageError(f"{file.path} is a bare problem: solve it, name its plan")


def trace_only(source: Input, device: int | None = None) -> Trace:
    """A trace, or a snapshot's, with the columns that reports need."""
    from memplan.trace.read import read_trace

    return read_trace(source, set(_COLUMNS), device)


def expanded(names: Sequence[str]) -> list[Path]:
    """The files that `names` stand for, patterns included. Raises InputError."""
    found: list[Path] = []
    for name in names:
        if Path(name).exists() or not glob.has_magic(name):
            found.append(Path(name))
            continue
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise InputError(f"{name}: no file is named like this")
        found += map(Path, matches)
    return list(dict.fromkeys(found))


class Percent(click.ParamType[Any]):
    """A share: 2% or 0.02."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """From 0 up. Raises UsageError."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1000:
            raise UsageError(f"{value!r} is no share; write 2% or 0.02")
        return share
