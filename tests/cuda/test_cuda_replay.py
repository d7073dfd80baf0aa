"""Serving CUDA requests from a plan: arenas, streams, steps, statistics."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.applying.cuda_library import CudaReplay, Place
from memplan.errors import EnvironmentUnfitError
from memplan.trace.journal import ROW
from memplan.trace.trace import Action
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
    assert stats["arena_bytes"] == stats["arena_bytes_peak"] == 8192
    assert world.torch_counts()["live"] == 1


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


def test_in_the_warm_up_departures_stay_out_of_the_arena(world: World) -> None:
    world.plan([(512, 0), (512, 0)], 4096, starts=(0, 1), loop_start=1)
    world.take(512)
    world.take(2048)
    assert world.stats()["fallback"] == 1
    world.native.next_step()
    world.take(2048)
    assert world.stats()["online"] == 1


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


def test_each_stream_and_device_has_an_arena_of_its_own(world: World) -> None:
    world.plan([(512, 0)], 512)
    world.plan([(512, 0)], 512, rank=1)
    world.plan([(512, 0)], 512, device=1)
    side = world.stream()
    blocks = [world.take(512), world.take(512, side), world.take(512, device=1)]
    assert len(set(blocks)) == 3
    assert world.stats(0)["planned"] == 2
    assert world.stats(1)["planned"] == 1


def test_when_plans_end_arenas_go_as_they_get_empty(world: World) -> None:
    world.plan([(512, 0), (512, 512)], 1024)
    first, second = world.take(512), world.take(512)
    world.native.serve(False)
    world.native.retire()
    world.take(512)
    assert world.stats()["arena_bytes"] == 1024
    world.release(first)
    assert world.native.blocks() == 1
    world.release(second)
    assert world.stats()["arena_bytes"] == world.native.blocks() == 0
    assert world.torch_counts()["live"] == 1
    assert world.stats()["planned"] == 2  # which is remembered


def test_a_plan_can_be_exchanged_while_blocks_are_alive(world: World) -> None:
    world.plan([(512, 0)], 512)
    old = world.take(512)
    world.plan([(512, 512)], 1024)
    new = world.take(512)
    assert new != old
    assert world.stats()["arena_bytes"] == 512 + 1024
    world.release(old)
    assert world.stats()["arena_bytes"] == 1024


@pytest.mark.parametrize("arena", [1024, 8192])
def test_a_plan_that_comes_later_holds_from_the_next_step(
    world: World, arena: int
) -> None:
    world.plan([(512, 0)], 2048)
    first = world.take(512)
    world.plan([(512, 512), (512, arena - 512)], arena, later=True)
    world.release(first)
    assert world.stats()["planned"] == 1
    world.native.next_step()
    block = world.take(512)
    assert (block == first + 512) == (arena <= 2048)
    assert world.stats()["planned"] == 2
    assert world.stats()["arena_bytes"] == max(2048, arena)


def test_a_plan_for_a_stream_without_one_cannot_come_later(world: World) -> None:
    with pytest.raises(EnvironmentUnfitError, match="no plan to be exchanged"):
        world.plan([(512, 0)], 512, rank=3, later=True)
    with pytest.raises(EnvironmentUnfitError, match="no such GPU: 64"):
        world.plan([(512, 0)], 512, device=64)


def test_what_stands_aside_gives_its_arena_back(world: World) -> None:
    place = Place()
    world.plan([(2048, 0)], 4096)
    block = world.take(2048)
    CudaReplay(world.native, place).stand_aside(True)
    assert CudaReplay(world.native, place).aside
    # What keeps the arena has it used, before more memory is taken.
    inside, outside = world.take(2048), world.take(512)
    assert (world.native.holds(inside), world.native.holds(outside)) == (True, False)
    stats = world.stats()
    assert (stats["arena_bytes"], stats["in_use_bytes"]) == (4096, 4096)
    assert (stats["planned"], stats["online"], stats["fallback"]) == (1, 1, 1)
    world.release(block)
    assert world.stats()["arena_bytes"] == 4096
    world.release(inside)
    assert world.stats()["arena_bytes"] == 0
    other = world.take(512)
    assert not world.native.holds(other)
    CudaReplay(world.native, place).stand_aside(False)
    world.native.next_step()
    world.take(2048)
    stats = world.stats()
    assert (stats["planned"], stats["online"], stats["fallback"]) == (2, 1, 2)


def test_a_warm_up_without_end_has_the_arena_used(world: World) -> None:
    arena = 4 * MIB
    world.plan([(2 * MIB, 0), (512, 0)], arena, starts=(0, 1), loop_start=1)
    world.take(2 * MIB)
    for _ in range(1024 + 2 * 2):  # by then it is another program's
        world.release(world.take(1024))
    assert world.stats()["online"] == 0
    inside, outside = world.take(MIB), world.take(arena)
    assert (world.native.holds(inside), world.native.holds(outside)) == (True, False)
    assert world.stats()["online"] == 1


def test_interruptions_are_left_to_torch(world: World) -> None:
    world.plan([(512, 0)], 512)
    elsewhere = ctypes.c_int(1)  # as the CPU's allocator counts them
    world.native.heed(ctypes.addressof(elsewhere))
    world.native.interrupt()
    blocks = [world.take(512)]
    assert world.native.resume()
    assert not world.native.resume()
    blocks.append(world.take(512))
    elsewhere.value = 0
    blocks.append(world.take(512))
    stats = world.stats()
    assert (stats["interrupted"], stats["requests"], stats["planned"]) == (2, 1, 1)
    assert [world.native.holds(block) for block in blocks] == [False, False, True]


def test_steps_without_marks_are_told_by_their_requests(world: World) -> None:
    sizes = [512 * (i + 1) for i in range(10)]
    places = [sum(sizes[:i]) for i in range(10)]
    world.plan(list(zip(sizes, places, strict=True)), sum(sizes), unmarked=True)
    for _ in range(4):
        blocks = [world.take(size) for size in sizes]
        world.release(*blocks)
    # The first eight show that it is the loop.
    assert world.stats()["planned"] == 40 - 7


def test_steps_are_told_one_by_one(world: World) -> None:
    place = Place()
    world.plan([(512, 0)], 4096, elastic=True)
    for size in (512, 300, 2048):
        world.release(world.take(size))
        world.native.next_step()
    steps = CudaReplay(world.native, place).take_steps()
    assert [number for number, _ in steps] == [0, 0, 0]
    assert [counts["planned"] for _, counts in steps] == [1, 1, 0]
    assert [counts["outgrown"] for _, counts in steps] == [0, 0, 1]
    assert CudaReplay(world.native, place).take_steps() == []
    assert CudaReplay(world.native, place).largest() == [2048]
    assert CudaReplay(world.native, place).arena_bytes == 4096
    world.release(world.take(5000))
    assert world.stats()["fallback"] == 1


def test_the_log_has_a_streams_events_alone(world: World) -> None:
    world.plan([(512, 0)], 512)
    side = world.stream()
    world.release(world.take(512))
    CudaReplay(world.native, Place()).open_log()
    planned, outside, other = world.take(512), world.take(3000), world.take(512, side)
    world.native.next_step(3)
    world.release(planned, outside, other)
    rows = np.frombuffer(CudaReplay(world.native, Place()).take_log(), dtype=ROW)
    assert rows["action"].tolist()[:3] == [Action.ALLOC, Action.ALLOC, Action.STEP]
    assert rows["address"].tolist()[:2] == [planned, outside]
    assert rows["size"].tolist()[:2] == [512, 3072]
    assert rows["mark"][2] == 3
    assert rows["address"].tolist()[3:] == [planned, outside]
    world.release(world.take(512))
    assert CudaReplay(world.native, Place()).take_log() == b""


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


def in_arena(world: World, *addresses: int) -> list[bool]:
    return [world.native.holds(address) for address in addresses]


def a_step_as_planned(world: World, *sizes: int) -> None:
    world.release(*[world.take(size) for size in sizes])
    world.native.next_step()


# A weight of 2048 bytes, then steps of two requests, of which the second has its size.
WEIGHT_AND_STEPS = ([(2048, -1), (1 << 16, 0), (2048, 1 << 16)], 1 << 17)


def test_copies_of_weights_lie_beside_the_arena(world: World) -> None:
    world.plan(*WEIGHT_AND_STEPS, starts=(0, 1), loop_start=1)
    a_step_as_planned(world, 2048)
    a_step_as_planned(world, 1 << 16, 2048)
    copy = world.take(2048)  # before the step's own requests
    own = [world.take(1 << 16), world.take(2048)]
    assert in_arena(world, copy, *own) == [False, True, True]
    assert world.stats()["conflicts"] == 0


def test_what_comes_between_steps_takes_no_later_request_s_place(world: World) -> None:
    world.plan([(1 << 16, 0), (2048, 1 << 16)], 1 << 17)
    a_step_as_planned(world, 1 << 16, 2048)
    between, first, second = (world.take(size) for size in (2048, 1 << 16, 2048))
    assert second - first == 1 << 16
    assert between not in (first, second)


def test_another_kind_of_step_is_recognised_after_what_comes_between(
    world: World,
) -> None:
    kinds = [(1 << 16, 0), (4096, 1 << 16), (1 << 17, 0), (512, 1 << 17)]
    world.plan(kinds, 1 << 18, starts=(0, 2), kinds=1)
    a_step_as_planned(world, 1 << 16, 4096)
    world.release(world.take(2048))
    planned = world.stats()["planned"]
    a_step_as_planned(world, 1 << 17, 512)
    assert world.stats()["planned"] == planned + 2


def test_what_comes_after_a_step_that_departed_is_no_copy(world: World) -> None:
    world.plan(*WEIGHT_AND_STEPS, starts=(0, 1), loop_start=1)
    a_step_as_planned(world, 2048)
    a_step_as_planned(world, 1 << 16, 4096)
    assert in_arena(world, world.take(2048)) == [True]


def test_arenas_go_back_when_they_are_empty_and_come_again(world: World) -> None:
    world.plan([(4096, 0)], 8192)
    block = world.take(4096)
    world.empty()
    assert world.stats()["arena_bytes"] == 8192
    world.release(block)
    world.empty()
    assert world.stats()["arena_bytes"] == world.torch_counts()["live"] == 0
    outside = world.take(4096)  # in the same step
    world.native.next_step()
    assert in_arena(world, outside, world.take(4096)) == [False, True]
    stats = world.stats()
    assert (stats["arenas_made"], stats["arenas_given_back"]) == (2, 1)


def test_no_arena_goes_back_while_a_pool_is_open(world: World) -> None:
    world.plan([(4096, 0)], 8192)
    a_step_as_planned(world, 4096)
    assert world.begin_pool()
    world.empty()
    assert world.stats()["arena_bytes"] == 8192
    world.end_pool()
