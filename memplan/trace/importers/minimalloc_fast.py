"""Large MiniMalloc files, column by column, by pyarrow.

A file is read here only where there is no doubt about what it says; all others go line
by line, which takes longer and tells what is wrong, and where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from memplan.arrays import Int64Array
from memplan.limits import MAX_TEXT

# pyarrow takes 0x10 for an integer, a tab for a blank, and a NUL for whatever follows.
_DOUBTFUL = (b"0x", b"0X", b"\t", b"\v", b"\f", b"\0")

Columns: TypeAlias = "tuple[list[str], dict[str, Int64Array]]"


def read_columns(data: bytes, names: Sequence[str]) -> Columns | None:
    """The ids, and the columns of integers by name; None where there is any doubt.

    data: the file, whose first line is its header. names: what the header's columns
    mean, `id` among them and no gaps; every other one is of integers.
    """
    if "gaps" in names or any(text in data for text in _DOUBTFUL):
        return None
    # A lone \r would end a line, too.
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return None
    types = {name: pa.string() if name == "id" else pa.int64() for name in names}
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=list(names), skip_rows=1, use_threads=False),
            csv.ParseOptions(
                quote_char=False,
                double_quote=False,
                escape_char=False,
                ignore_empty_lines=False,
            ),
            csv.ConvertOptions(
                column_types=types, null_values=[], strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, ValueError):
        return None
    if any(column.null_count for column in table.columns):
        return None
    ids = table.column("id")
    if len(ids) and pc.max(pc.utf8_length(ids)).as_py() > MAX_TEXT:
        return None
    columns = {
        name: np.array(table.column(name).to_numpy(), dtype=np.int64)
        for name in names
        if name != "id"
    }
    labels = ids.to_pylist()
    del table, ids
    pa.default_memory_pool().release_unused()
    return labels, columns


def within(columns: Mapping[str, Int64Array], least: Mapping[str, int]) -> bool:
    """Whether no column of integers has a value below its least one."""
    return all((values >= least[name]).all() for name, values in columns.items())
