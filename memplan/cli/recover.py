"""memplan recover"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show
from memplan.errors import UsageError
from memplan.files import refuse_overwrite
from memplan.trace.journal import Journal
from memplan.trace.recovery import paths_of, recover_journal
from memplan.trace.write import check_suffix
from memplan.units import format_bytes


@click.command("recover")
@arguments.existing("journal")
@arguments.output(
    "The trace.  [default: the journal's name without .journal]", arguments.BY_SUFFIX
)
@arguments.force("the trace if it exists")
@arguments.json_
def command(journal: Path, output: Path | None, force: bool, json_: bool) -> None:
    """Make a trace from the JOURNAL of a recording that was killed.

    memplan keeps every journal block before the first damaged one, reports how many
    bytes are lost, and marks the trace as incomplete. It does not delete the
    journal. For a recording of CUDA memory, it writes one trace for each GPU.

    \b
    Example: memplan recover train.parquet.journal
    """
    if output is None and journal.suffix != ".journal":
        raise UsageError(f"{journal}: name the trace to write with -o")
    path = output or journal.with_suffix("")
    check_suffix(path)
    refuse_overwrite(path, force)  # before a long journal is read
    paths = paths_of(path, Journal(journal).devices)
    for name in paths.values():
        refuse_overwrite(name, force)
    traces = {
        each: recover_journal(journal, name, device=each)
        for each, name in paths.items()
    }
    device, found = next(iter(traces.items()))
    state = "complete" if found.info.complete else "incomplete: it was cut off"
    rows = [("events", f"{found.summary.events:,}"), ("state", state)]
    if device is not None:
        rows.insert(0, ("device", "cuda"))
    if found.bytes_lost:
        rows.append(("lost", f"{format_bytes(found.bytes_lost)}: {found.reason}"))
    if json_:
        entries = {
            "output": path,
            "events": found.summary.events,
            "complete": found.info.complete,
            "bytes_lost": found.bytes_lost,
            "reason": found.reason if found.bytes_lost else None,
        }
        show.as_json(entries, "memplan.recovered")
        return
    show.facts(f"memplan: recovered {path}", rows, err=True)
    for other, name in list(paths.items())[1:]:
        show.note(f"device {other} is in {name}")
