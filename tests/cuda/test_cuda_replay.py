"""Serving CUDA requests from a plan: arenas, streams, steps, statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.errors import EnvironmentUnfitError
from tests.cuda.cuda_world import MIB, World

UNIT = 512


def test_planned_requests_get_their_offsets_again_and_again(world: World) -> None:
    world.plan([(1000, 0), (4096, 1024), (512, 5120)], 8192)
    base = 0
    for step in range(3):
        blocks = [world.take(size) for size in (1000, 4096, 512)]
        base = base or blocks[0]
        assert [block - base for block in blocks] == [0, 1024, 5120]
        for token, (block, size) in enumerate(
            zip(blocks, (1000, 4096, 512), strict=True)
        ):
            world.fill(None, block, size, 10 * step + token)
            world.check(None, block, size, 10 * step + token)
            world.release(block)
        world.native.next_step()
    stats = world.stats()
    assert (stats["hot_requests"], stats["hot_planned"]) == (9, 9)
    assert stats["fallback"] == stats["conflicts"] == 0
    assert stats["reserved_bytes"] == stats["arena_bytes"] == 8192
    assert world.counts()["cudaMalloc"] == 1
    world.assert_no_leak()


def test_a_request_of_no_bytes_gets_null_and_is_not_counted(world: World) -> None:
    assert world.allocate(0) == 0
    assert world.stats().get("requests", 0) == 0
    world.release(0)


def test_sizes_match_as_rounded_to_512(world: World) -> None:
    world.plan([(1, 0), (1024, 512)], 2048)
    first, second = world.take(512), world.take(600)
    assert second - first == 512
    assert world.stats()["planned"] == 2
    world.release(first)
    world.release(second)
    world.assert_no_leak()


def test_a_planned_range_in_use_is_a_conflict_and_goes_elsewhere(world: World) -> None:
    world.plan([(512, 0)], 1024)
    first = world.take(512)
    world.native.next_step()
    second = world.take(512)
    assert second - first == 512
    world.native.next_step()
    third = world.take(512)
    assert not first <= third < first + 1024
    stats = world.stats()
    assert (stats["planned"], stats["conflicts"], stats["online"]) == (1, 2, 1)
    assert stats["fallback"] == 1
    for block in (first, second, third):
        world.release(block)
    world.assert_no_leak()


def test_in_the_warm_up_departures_stay_out_of_the_arena(world: World) -> None:
    world.plan([(512, 0), (512, 0)], 4096, starts=(0, 1), loop_start=1)
    stranger = world.take(2048)
    assert world.stats()["fallback"] == 1
    world.native.next_step()
    other = world.take(2048)
    assert world.stats()["online"] == 1
    world.release(stranger)
    world.release(other)
    world.assert_no_leak()


def test_an_unplanned_entry_is_left_to_cuda(world: World) -> None:
    world.plan([(512, -1), (512, 0)], 512)
    weight, block = world.take(512), world.take(512)
    stats = world.stats()
    assert (stats["unplanned"], stats["planned"]) == (1, 1)
    assert stats["reserved_bytes"] == 1024
    world.release(weight)
    world.release(block)
    world.assert_no_leak()


def test_a_request_on_another_stream_is_served_outside_the_arena(world: World) -> None:
    world.plan([(512, 0)], 512)
    side = world.stream()
    other = world.take(512, side)
    own = world.take(512)
    stats = world.stats()
    assert (stats["planned"], stats["other_stream"]) == (1, 1)
    assert abs(own - other) >= 512
    world.release(own)
    world.release(other)
    world.assert_no_leak()


def test_requests_of_all_streams_add_up_with_their_bytes(world: World) -> None:
    world.plan([(512, 0), (512, 0)], 1024, starts=(0, 1), loop_start=1)
    side = world.stream()
    blocks = [world.take(512), world.take(4096), world.take(1000, side)]
    world.native.next_step()
    blocks += [world.take(512), world.take(512), world.take(2048, side)]
    stats = world.stats()
    for prefix in ("", "hot_"):
        parts = ("planned", "unplanned", "online", "fallback")
        assert stats[f"{prefix}requests"] == sum(stats[prefix + part] for part in parts)
    assert (stats["requests"], stats["hot_requests"]) == (6, 3)
    assert (stats["planned"], stats["hot_conflicts"]) == (1, 1)
    assert (stats["hot_online"], stats["hot_online_bytes"]) == (1, 512)
    assert (stats["fallback"], stats["fallback_bytes"]) == (4, 4096 + 1024 + 512 + 2048)
    assert (stats["hot_fallback"], stats["hot_fallback_bytes"]) == (2, 512 + 2048)
    assert stats["other_stream"] == 2
    for block in blocks:
        world.release(block)
    world.assert_no_leak()


def test_each_stream_and_device_has_an_arena_of_its_own(world: World) -> None:
    world.plan([(512, 0)], 512)
    world.plan([(512, 0)], 512, rank=1)
    world.plan([(512, 0)], 512, device=1)
    side = world.stream()
    blocks = [world.take(512), world.take(512, side), world.take(512, device=1)]
    assert len(set(blocks)) == 3
    assert world.stats(0)["planned"] == 2
    assert world.stats(1)["planned"] == 1
    for block in blocks:
        world.release(block)
    world.assert_no_leak()


def test_freed_blocks_outside_the_arenas_serve_their_own_stream_again(
    world: World,
) -> None:
    side = world.stream()
    block = world.take(5000, side)
    world.release(block)
    assert world.take(5000) != block
    assert world.take(4700, side) == block
    assert world.counts()["cudaMalloc"] == 2


def test_a_step_of_another_kind_is_recognised(world: World) -> None:
    requests = [(1024, 0), (512, 1024), (1024, 512), (2048, 2048)]
    world.plan(requests, 4096, starts=(0, 2), kinds=1)
    places = []
    for sizes in [(1024, 512), (1024, 2048), (1024, 512)]:
        blocks = [world.take(size) for size in sizes]
        places.append([block - blocks[0] for block in blocks])
        for block in blocks:
            world.release(block)
        world.native.next_step()
    # The first request does not tell them apart, the second does.
    assert places == [[0, 1024], [0, 2048], [0, 1024]]
    assert world.stats()["hot_planned"] == 6
    world.assert_no_leak()


def test_elastic_steps_go_by_position(world: World) -> None:
    world.plan([(4096, 0), (2048, 4096)], 8192, elastic=True)
    base = None
    for first, second in [(4096, 2048), (700, 2000), (512, 512)]:
        blocks = [world.take(first), world.take(second)]
        base = base or blocks[0]
        assert [block - base for block in blocks] == [0, 4096]
        for block in blocks:
            world.release(block)
        world.native.next_step()
    # More than planned: that step goes on without the plan.
    large = world.take(6000)
    assert world.stats()["hot_planned"] == 6
    assert world.stats()["hot_online"] == 1
    world.release(large)
    world.assert_no_leak()


def test_a_cached_block_is_not_wasted_on_a_much_smaller_request(world: World) -> None:
    block = world.take(64 * UNIT)
    world.release(block)
    assert world.take(32 * UNIT) != block
    assert world.take(55 * UNIT) != block
    assert world.take(56 * UNIT) == block


def test_the_cache_is_bounded_and_can_be_emptied(world: World) -> None:
    world.native.set_cache_limit(4 * MIB)
    blocks = [world.take(MIB) for _ in range(10)]
    for block in blocks:
        world.release(block)
    assert world.stats()["cached_bytes"] == 4 * MIB
    assert world.counts()["live_bytes"] == world.stats()["reserved_bytes"] == 4 * MIB
    world.native.empty_cache()
    assert world.stats()["cached_bytes"] == world.counts()["live_bytes"] == 0
    world.assert_no_leak()


def test_blocks_evicted_from_the_cache_are_no_longer_in_use(world: World) -> None:
    world.native.set_cache_limit(0)
    block = world.take(MIB)
    world.fill(None, block, MIB, 1)
    world.check(None, block, MIB, 1)
    world.release(block)
    assert world.counts()["live_bytes"] == 0
    world.assert_sound()


def test_passing_through_leaves_the_arenas_alone(world: World) -> None:
    world.plan([(512, 0)], 512)
    block = world.take(512)
    world.native.pass_through(True)
    world.native.next_step()
    outside = world.take(512)
    assert world.stats()["requests"] == world.stats()["planned"] == 1
    world.native.pass_through(False)
    world.release(block)
    world.native.next_step()
    assert world.take(512) == block
    world.release(block)
    world.release(outside)
    world.assert_no_leak()


def test_statistics_follow_blocks_and_reservations(world: World) -> None:
    first, second = world.take(1000), world.take(3 * MIB)
    stats = world.stats()
    assert stats["allocated_bytes"] == stats["active_bytes"] == 1024 + 3 * MIB
    world.release(second)
    world.release(first)
    stats = world.stats()
    assert stats["allocated_bytes"] == stats["active_bytes"] == 0
    assert stats["allocated_bytes_peak"] == 1024 + 3 * MIB
    assert stats["reserved_bytes"] == stats["cached_bytes"] == 1024 + 3 * MIB
    assert stats["frees"] == stats["requests"] == 2
    assert world.stats(5) == {}


def test_a_free_of_an_unknown_address_is_counted_and_harmless(world: World) -> None:
    block = world.take(512)
    world.release(block + 512)
    world.release(block)
    world.release(block)
    assert world.stats()["unknown_frees"] == 2
    world.assert_no_leak()


def test_a_free_finds_its_device_whatever_is_passed(world: World) -> None:
    block = world.take(512, device=1)
    world.release(block, device=0)
    assert world.stats(1)["frees"] == 1
    world.assert_no_leak()


def test_shutting_down_tells_of_blocks_still_in_use(world: World) -> None:
    world.plan([(512, 0)], 512)
    block = world.take(512)
    assert world.native.shut_down() == 1
    assert world.counts()["live_bytes"] == 512
    world.release(block)
    world.assert_no_leak()


@pytest.mark.parametrize(
    ("requests", "starts", "loop_start", "message"),
    [
        ([(512, 0)], (1,), 0, "starts must begin with 0"),
        ([(512, 0)], (0,), 1, "the steps that repeat must be some"),
        ([(512, 0)], (0, 5), 0, "starts must ascend"),
        ([(0, 0)], (0,), 0, "a size is not positive"),
        ([(512, 64)], (0,), 0, "not a multiple of 512"),
    ],
)
def test_what_is_no_plan_is_refused(
    world: World,
    requests: list[tuple[int, int]],
    starts: tuple[int, ...],
    loop_start: int,
    message: str,
) -> None:
    with pytest.raises(EnvironmentUnfitError, match=message):
        world.plan(requests, 1024, starts=starts, loop_start=loop_start)


def test_a_stream_has_one_plan(world: World) -> None:
    world.plan([(512, 0)], 512)
    with pytest.raises(EnvironmentUnfitError, match="has a plan already"):
        world.plan([(512, 0)], 512)


def test_without_the_runtime_nothing_is_served(
    world_of: Callable[..., World],
) -> None:
    world = world_of(load=False)
    assert "was not found" in str(world.allocate(512))
    with pytest.raises(EnvironmentUnfitError, match=r"nowhere\.so is not loaded"):
        world.native.load_runtime("/nowhere.so")
    world.native.load_runtime(str(world.runtime))
    world.release(world.take(512))
    world.assert_no_leak()


def test_a_library_that_is_no_runtime_is_refused(
    world_of: Callable[..., World],
) -> None:
    world = world_of(load=False)
    with pytest.raises(EnvironmentUnfitError, match="has no cudaGetDevice"):
        world.native.load_runtime(str(world.native.path))


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """(what, stream, argument) commands."""
    kinds = ("take", "take", "take", "free", "free", "step", "use", "advance")
    count = draw(st.integers(5, 80))
    return [
        (
            draw(st.sampled_from(kinds)),
            draw(st.integers(0, 2)),
            draw(st.integers(0, 5)),
        )
        for _ in range(count)
    ]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=scripts(), offsets=st.lists(st.integers(0, 24), min_size=6, max_size=6))
def test_whatever_the_program_does_no_two_blocks_meet(
    world_of: Callable[..., World],
    script: list[tuple[str, int, int]],
    offsets: list[int],
) -> None:
    world = world_of()
    sizes = (512, 512, 1024, 4096, 700, 2048)
    planned = [(s, o * UNIT) for s, o in zip(sizes, offsets, strict=True)]
    world.plan(planned, 32 * UNIT, starts=(0, 3), loop_start=1)
    world.plan(planned, 32 * UNIT, rank=1)
    streams: list[int | None] = [None, world.stream(), world.stream()]
    live: list[tuple[int, int, int | None, int]] = []
    for token, (what, which, argument) in enumerate(script, 1):
        stream = streams[which]
        if what == "take":
            size = sizes[argument]
            address = world.take(size, stream)
            for other, length, _, _ in live:
                assert address + size <= other or other + length <= address
            world.fill(stream, address, size, token)
            live.append((address, size, stream, token))
        elif what == "free" and live:
            address, size, own, mark = live.pop(argument % len(live))
            world.check(own, address, size, mark)
            world.release(address)
        elif what == "use" and live:
            address, size, own, mark = live[argument % len(live)]
            world.wait(stream, own)
            world.check(stream, address, size, mark)
            world.record_stream(address, stream)
        elif what == "step":
            world.native.next_step()
        elif what == "advance":
            world.advance(stream, argument)
    for address, size, own, mark in live:
        world.check(own, address, size, mark)
        world.release(address)
    world.assert_no_leak()
