"""What a plan would save, told at the end of memplan stats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import memplan as package
from memplan.core.plan import RunStats
from memplan.reporting import saving as module
from memplan.reporting.saving import saving
from memplan.trace.trace import Action, Columns, Trace
from tests.conftest import Run
from tests.programs import Made, Step, trace_of

MIB = 1 << 20
KEPT = Made(4 * MIB, None)
STEP: Step = (Made(4 * MIB, 0), Made(2 * MIB, 0), Made(8 * MIB, 0))


def training(peak: int = 0, added: int = 0) -> Trace:
    """4 MiB that stay, and at most 8 MiB in each step. peak, added: measured bytes."""
    trace = trace_of([(KEPT, *STEP), *[STEP] * 6])
    run = RunStats(peak_rss_bytes=peak)
    return replace(trace, info=replace(trace.info, run=run, added_bytes=added))


def on_cuda(trace: Trace, reserved: int) -> Trace:
    """The same, on a GPU whose allocator reserved so much at once."""
    events = trace.events
    columns = {name: np.insert(getattr(events, name), 0, 0) for name in Columns.DTYPES}
    columns["action"][0] = Action.SEGMENT_ALLOC
    columns["size"][0], columns["stack"][0] = reserved, -1
    return replace(
        trace, events=Columns.of(**columns), info=replace(trace.info, device="cuda")
    )


def test_of_a_process_it_is_what_was_resident() -> None:
    found = saving(training(100 * MIB, added=20 * MIB))
    assert found is not None
    assert (found.of, found.now) == ("resident", 100 * MIB)
    assert found.planned_least == 92 * MIB  # 8 MiB of arena, 4 MiB that stay
    assert found.planned_least <= found.planned <= 100 * MIB
    assert found.pays and found.share == pytest.approx(0.08)


def test_what_a_run_added_beside_tensors_is_not_theirs_to_save() -> None:
    small = saving(training(400 * MIB, added=300 * MIB))
    assert small is not None
    # Twice the 12 MiB that were live are heaps' at most; 12 MiB of it are needed.
    assert small.now - small.planned_least == 12 * MIB


def test_where_more_was_measured_both_ends_are_told(
    memplan: Run, tmp_path: Path
) -> None:
    trace = training(100 * MIB)
    used = replace(trace.info, used_bytes=74 * MIB)  # 4 MiB of tensors at the end
    found = saving(replace(trace, info=used))
    assert found is not None
    assert found.planned == found.planned_least == 82 * MIB
    assert 82 * MIB <= found.now_least < found.now == 100 * MIB
    assert found.least == found.now_least - found.planned
    package.write_trace(replace(trace, info=used), tmp_path / "t.parquet")
    done = memplan("solve", "t.parquet")
    assert "resident      at most 82.0 MiB under the plan, " in done.stdout
    assert " to 100.0 MiB without it" in done.stdout


def test_it_does_not_pay_where_the_rest_is_large() -> None:
    found = saving(training(1 << 40))
    assert found is not None and not found.pays


def test_of_cuda_it_is_what_was_reserved() -> None:
    found = saving(on_cuda(training(), 24 * MIB))
    assert found is not None
    assert (found.of, found.now, found.planned) == ("reserved", 24 * MIB, 12 * MIB)
    none = replace(training(), info=replace(training().info, device="cuda"))
    assert saving(none) is None


def test_stats_of_cuda_promises_no_whole_segments(memplan: Run, tmp_path: Path) -> None:
    package.write_trace(on_cuda(training(), 24 * MIB), tmp_path / "t.parquet")
    last = memplan("stats", "t.parquet").stdout.splitlines()[-1]
    assert last.endswith("t.parquet may save up to 12.0 MiB of 24.0 MiB reserved")


def test_without_a_measurement_it_is_of_simulated_heaps() -> None:
    found = saving(training())
    assert found is not None
    assert (found.of, found.planned) == ("heaps", 12 * MIB)
    assert found.now > 12 * MIB  # a heap's own headers


def test_it_is_not_known_where_nothing_repeats_or_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = trace_of([(Made(64, 0),), (Made(128, 0), Made(64, 0)), (Made(999, 0),)])
    assert saving(odd) is None
    assert saving(Trace(Columns.of())) is None
    assert saving(trace_of([(Made(64, None),)] * 6)) is None
    monkeypatch.setattr(module, "MOST_EVENTS", 10)
    assert saving(training()) is None


def test_stats_says_it(memplan: Run, tmp_path: Path) -> None:
    package.write_trace(training(100 * MIB, added=20 * MIB), tmp_path / "t.parquet")
    package.write_trace(training(1 << 40), tmp_path / "large.parquet")
    last = memplan("stats", "t.parquet").stdout.splitlines()[-1]
    assert last.startswith("  next: memplan solve t.parquet may save ")
    assert last.endswith(" to 8.0 MiB of 100.0 MiB resident")
    last = memplan("stats", "large.parquet").stdout.splitlines()[-1]
    assert last == "  a plan would not pay: it saves 0.0 % of 1.0 TiB resident at most"
    info = replace(training().info, device="cuda")
    package.write_trace(replace(training(), info=info), tmp_path / "none.parquet")
    last = memplan("stats", "none.parquet").stdout.splitlines()[-1]
    assert last.endswith("nothing that is known: the recording tells of no segments")
    found = json.loads(memplan("stats", "t.parquet", "--json").stdout)["saving"]
    assert found["of"] == "resident" and found["pays"]
    assert found["planned_least_bytes"] == 92 * MIB
