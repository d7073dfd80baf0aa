"""Read a trace from a file, whichever of its forms it has."""

from __future__ import annotations

from collections.abc import Collection

from memplan.errors import FormatError
from memplan.files import PathLike, open_input
from memplan.trace.trace import Trace

_HEAD_BYTES = 4096


def read_trace(path: PathLike, columns: Collection[str] | None = None) -> Trace:
    """The Trace in a ``.parquet``, ``.json`` or ``.json.gz`` file.

    A CUDA memory snapshot (``torch.cuda.memory._dump_snapshot``) will do, too, if one
    device alone has a history in it. What the file is, its contents tell, not its
    name. columns: those needed of a Parquet file; the others are left out, as
    `Columns.of` does, and take up no memory. Raises InputError if it cannot be read,
    FormatError (an InputError) if it is not a whole and valid trace.
    """
    from memplan.trace import columnar_json, journal, parquet
    from memplan.trace.importers import snapshot

    with open_input(path) as (stream, _):
        head = stream.read(_HEAD_BYTES)
    if head.startswith(parquet.MAGIC):
        return parquet.read_parquet(path, columns)
    if snapshot.looks_like_snapshot(head):
        return snapshot.read_snapshot(path)
    if head.startswith(columnar_json.GZIP_MAGIC) or head.lstrip().startswith(b"{"):
        return columnar_json.read_json(path)
    if head.startswith(journal.MAGIC):
        raise FormatError(
            path,
            "a recording that did not come to its end",
            f"make a trace of it: memplan recover {path}",
        )
    raise FormatError(
        path,
        "neither a Parquet nor a JSON trace, nor a memory snapshot",
        "name a trace recorded or imported by memplan",
    )
