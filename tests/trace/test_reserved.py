"""What an allocator reserved, and what of it no block holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.core.plan import DeviceRun
from memplan.trace.caching_allocator import CachingAllocator
from memplan.trace.importers.snapshot import from_snapshot
from memplan.trace.lives import lives_of
from memplan.trace.reserved import Reserved, device_run, reserved_at
from memplan.trace.trace import Action, Columns, Trace
from tests.programs import events_of
from tests.snapshot_samples import Device, segment, snapshot

MIB = 1 << 20
BASE = 0x7F_0000_0000


def of(*rows: tuple[Action, int, int]) -> Columns:
    return events_of("action address size", rows)


def after(events: Columns, row: int) -> Reserved:
    lives = lives_of(Trace(events))
    return reserved_at(events, row, lives.row[lives.live_rows(row)])


def last(events: Columns) -> Reserved:
    return after(events, len(events) - 1)


def test_holes_between_blocks_and_segments_without_any() -> None:
    events = of(
        (Action.SEGMENT_ALLOC, 1000, 100),
        (Action.SEGMENT_ALLOC, 1100, 50),  # touches the first one
        (Action.SEGMENT_ALLOC, 5000, 70),
        (Action.ALLOC, 1010, 20),
        (Action.ALLOC, 1060, 40),
        (Action.ALLOC, 5000, 70),
        (Action.FREE_COMPLETED, 5000, 70),
    )
    assert last(events) == Reserved(220, 60, split=40, empty=120, largest_free=70)
    assert after(events, 5) == Reserved(220, 130, 40, 50, 50)
    assert after(events, -1) == Reserved(0, 0, 0, 0, 0)
    assert device_run(events) == DeviceRun(220, 130, mallocs=3, frees=0)
    assert device_run(of((Action.ALLOC, 0, 9))) == DeviceRun()  # as on a CPU


def test_segments_grow_and_shrink_by_pieces() -> None:
    events = of(
        (Action.SEGMENT_ALLOC, 0, 100),
        (Action.SEGMENT_ALLOC, 100, 100),
        (Action.ALLOC, 50, 100),  # reaches over both
        (Action.SEGMENT_ALLOC, 200, 100),
        (Action.SEGMENT_FREE, 180, 60),  # what was mapped otherwise
    )
    assert last(events) == Reserved(240, 100, split=80, empty=60, largest_free=60)
    assert after(events, 3) == Reserved(300, 100, 100, 100, 100)


def test_blocks_outside_of_known_segments_leave_it_open() -> None:
    events = of((Action.SEGMENT_ALLOC, 0, 4096), (Action.ALLOC, BASE, 512))
    assert last(events) == Reserved(4096, 512, None, None, None)


def test_addresses_at_the_end_of_all() -> None:
    top = (1 << 64) - 1
    events = Columns.of(
        action=[Action.SEGMENT_ALLOC, Action.ALLOC],
        address=np.array([top - 10, top - 5], dtype=np.uint64),
        size=[1 << 62, 1 << 62],
        requested_size=[1, 1],
    )
    assert last(events).reserved == 1 << 62


def test_segments_of_before_the_history_lie_where_they_did() -> None:
    device = Device()
    device.allocate(BASE + 512, 512)
    device.other("segment_free", addr=BASE + 64 * MIB, size=2 * MIB)
    device.other("segment_alloc", addr=BASE + 8 * MIB, size=20 * MIB)
    segments = (
        segment(BASE, 2 * MIB, (BASE + 512, 512, "active_allocated")),
        segment(BASE + 2 * MIB, 2 * MIB),  # touches the first one
        segment(BASE + 8 * MIB, 20 * MIB),
    )
    events = from_snapshot(snapshot(device, segments=segments)).trace.events
    begun = events.action == Action.SEGMENT_ALLOC
    addresses = (events.address[begun] - np.uint64(BASE)) // np.uint64(MIB)
    assert addresses.tolist() == [0, 2, 64, 8]
    assert (events.size[begun] // MIB).tolist() == [2, 2, 2, 20]
    assert last(events) == Reserved(*(24 * MIB, 512, 2 * MIB - 512, 22 * MIB, 20 * MIB))


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 3)), max_size=60))
def test_a_simulated_allocator_has_the_same_holes(
    requests: list[tuple[int, int]],
) -> None:
    gpu, rows, live = CachingAllocator(), [], []
    for size, freed in requests:
        address, rounded = gpu.allocate(size)
        changes = [
            (Action.SEGMENT_ALLOC if made else Action.SEGMENT_FREE, where, many)
            for made, where, many in gpu.take_changes()
        ]
        rows += [*changes, (Action.ALLOC, address, rounded)]
        live.append(address)
        if freed == 0:
            gone = live.pop(len(live) // 2)
            rows.append((Action.FREE_COMPLETED, gone, gpu.free(gone)))
    if not rows:
        return
    found = last(of(*rows))
    assert found.reserved == gpu.reserved
    assert found.split is not None and found.empty is not None
    assert found.allocated + found.split + found.empty == gpu.reserved
    assert found.largest_free is not None
    # What is left uncut behind a block is not told: up to 1 MiB of each.
    assert gpu.allocated - found.allocated <= len(live) * MIB
    assert gpu.largest_free <= found.largest_free <= gpu.largest_free + MIB or (
        found.largest_free <= MIB
    )
