"""What the simulated CUDA allocator reserves, against its documented rules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.trace.caching_allocator import (
    CachingAllocator,
    DeviceFullError,
    segment_size,
)
from memplan.trace.importers.snapshot_history import rounded

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "taken", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_requests_are_rounded_and_have_segments(
    size: int, taken: int, segment: int
) -> None:
    gpu = CachingAllocator()
    _, told = gpu.allocate(size)
    assert told == rounded(size) == taken
    assert gpu.reserved == segment_size(taken) == segment


def test_small_blocks_are_cut_to_the_last_512_bytes_large_ones_are_not() -> None:
    gpu = CachingAllocator()
    for _ in range(4):
        gpu.allocate(MIB // 2)
    assert gpu.reserved == 2 * MIB
    gpu = CachingAllocator()
    gpu.allocate(19 * MIB + 512)  # its own segment, of 20 MiB
    assert gpu.reserved == gpu.allocated == 20 * MIB  # a rest of up to 1 MiB stays


def test_the_smallest_free_block_that_holds_it_serves_a_request() -> None:
    gpu = CachingAllocator()
    large, _ = gpu.allocate(40 * MIB)
    small, _ = gpu.allocate(12 * MIB)
    gpu.free(large)
    gpu.free(small)
    assert gpu.allocate(11 * MIB)[0] == small
    assert gpu.reserved == 52 * MIB


def test_neighbours_that_are_free_become_one_block() -> None:
    gpu = CachingAllocator()
    parts = [gpu.allocate(5 * MIB)[0] for _ in range(4)]
    for part in (parts[0], parts[2], parts[3], parts[1]):
        gpu.free(part)
    assert gpu.largest_free == 20 * MIB
    assert gpu.allocated == 0


def test_a_full_device_gives_back_what_is_free_before_it_fails() -> None:
    gpu = CachingAllocator(capacity=50 * MIB)
    address, _ = gpu.allocate(30 * MIB)
    gpu.free(address)
    gpu.allocate(40 * MIB)
    assert gpu.reserved == 40 * MIB
    assert [made for made, _, _ in gpu.take_changes()] == [True, False, True]
    with pytest.raises(DeviceFullError) as full:
        gpu.allocate(11 * MIB)
    assert full.value.requested == 11 * MIB


def test_a_segment_that_is_used_in_part_is_not_given_back() -> None:
    gpu = CachingAllocator()
    gpu.allocate(5 * MIB)
    whole, _ = gpu.allocate(12 * MIB)
    large, _ = gpu.allocate(30 * MIB)
    gpu.free(whole)
    gpu.free(large)
    gpu.take_changes()
    gpu.empty_cache()
    assert gpu.take_changes() == [(False, large, 30 * MIB)]
    assert gpu.reserved == 20 * MIB


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 40 * MIB), st.integers(0, 50)),
        max_size=80,
    )
)
def test_live_blocks_never_overlap_and_counts_agree(
    requests: list[tuple[bool, int, int]],
) -> None:
    gpu = CachingAllocator()
    live: list[tuple[int, int]] = []
    for freeing, size, which in requests:
        if freeing and live:
            address, told = live.pop(which % len(live))
            assert gpu.free(address) == told
        else:
            live.append(gpu.allocate(size))
        ranges = sorted(live)
        for (first, taken), (second, _) in itertools.pairwise(ranges):
            assert first + taken <= second
        assert sum(taken for _, taken in live) <= gpu.allocated <= gpu.reserved
        changes = gpu.take_changes()
        assert all(made for made, _, _ in changes)
    for address, _ in live:
        gpu.free(address)
    gpu.empty_cache()
    assert gpu.allocated == gpu.reserved == 0
