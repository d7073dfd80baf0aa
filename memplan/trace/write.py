"""Write a trace to a file, in the form its suffix names."""

from __future__ import annotations

import os

from memplan.errors import UsageError
from memplan.files import PathLike
from memplan.trace.trace import Trace

SUFFIXES = (".parquet", ".json", ".json.gz")


def check_suffix(path: PathLike) -> None:
    """Raise UsageError unless `path` ends in one of SUFFIXES."""
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise UsageError(f"{name}: no such form; end it in {', '.join(SUFFIXES)}")


def write_trace(trace: Trace, path: PathLike) -> None:
    """Write `trace` to `path`, atomically, in the form of its suffix.

    ``.parquet`` (smallest and fastest), ``.json`` or ``.json.gz``; a file that is
    there is replaced. Raises UsageError for another suffix, FormatError for a trace
    that could not be read back, EnvironmentUnfitError if writing fails.
    """
    check_suffix(path)
    if os.fspath(path).endswith(".parquet"):
        from memplan.trace.parquet import write_parquet

        write_parquet(trace, path)
    else:
        from memplan.trace.columnar_json import write_json

        write_json(trace, path)
