"""From a journal to the trace's file, in memory that does not grow with the trace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.trace.importers.snapshot_history import GRANULARITY
from memplan.trace.info import encode_metadata
from memplan.trace.journal import Journal
from memplan.trace.lives import Summary
from memplan.trace.trace import Columns, Trace, TraceInfo
from memplan.trace.write import check_suffix, write_trace

MAX_JSON_EVENTS = 4 << 20  # the JSON form is written from memory


@dataclass(frozen=True)
class Written:
    """What is in a trace that was written."""

    info: TraceInfo
    summary: Summary


@dataclass(frozen=True)
class Recovered(Written):
    """What of a journal is in the trace that was written.

    bytes_lost: of the journal, after its last sound block.
    reason: why reading stopped before the end of the file; "" if it did not.
    """

    bytes_lost: int
    reason: str


def paths_of(path: PathLike, devices: Sequence[int]) -> dict[int | None, Path]:
    """Where the trace of each GPU goes, or, with None, the CPU's if there is none."""
    found: dict[int | None, Path] = {devices[0] if devices else None: Path(path)}
    for device in devices[1:]:
        found[device] = path_of(Path(path), device)
    return found


def path_of(path: Path, device: int) -> Path:
    """Where the trace of a GPU beyond the first goes, beside `path`."""
    name = path.name
    suffix = next(s for s in (".json.gz", ".json", ".parquet") if name.endswith(s))
    return path.with_name(f"{name.removesuffix(suffix)}.cuda{device}{suffix}")


def recover_journal(
    source: PathLike,
    path: PathLike,
    dropped: int | None = None,
    device: int | None = None,
) -> Recovered:
    """Write every sound block of the journal `source` as the trace at `path`.

    device: of its events, those of this GPU, by its index; None: the CPU's.

    dropped: how many events never reached the journal, where that is known; the trace
    is `complete` then only if there were none, and otherwise if the journal says so.
    Reading stops as `Journal` and `Journal.pieces` have it. Raises what `Journal`
    does, UsageError for a suffix that `write_trace` does not know, FormatError for
    more than MAX_JSON_EVENTS events in JSON, EnvironmentUnfitError if writing fails.
    """
    check_suffix(path)
    journal = Journal(source)

    def info() -> TraceInfo:
        found = journal.info
        if device is not None:  # what the process had resident is another matter
            found = replace(found, device="cuda", alignment=GRANULARITY)
            found = replace(found, added_bytes=0, used_bytes=0)
        if dropped is None:
            return found
        whole = found.complete and not dropped and not journal.reason
        return replace(found, dropped_events=dropped, complete=whole)

    def trace_of(events: Columns) -> Trace:
        return Trace(events, journal.stacks, info(), journal.calls)

    if os.fspath(path).endswith(".parquet"):
        from memplan.trace.parquet import write_pieces

        write_pieces(
            path,
            journal.pieces(device),
            lambda: encode_metadata(path, trace_of(Columns.of())),
        )
    else:
        events = Columns.joined([Columns.of(), *_few(path, journal.pieces(device))])
        write_trace(trace_of(events), path)
    return Recovered(info(), journal.summary, journal.lost, journal.reason)


def _few(path: PathLike, pieces: Iterator[Columns]) -> Iterator[Columns]:
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > MAX_JSON_EVENTS:
            problem = f"more than {MAX_JSON_EVENTS} events are too many for JSON"
            raise FormatError(path, problem, "name a .parquet file with -o")
        yield piece
