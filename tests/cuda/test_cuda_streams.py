"""Blocks that other streams use, memory that runs out, pools and captures."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_world import LAUNCH_FAILURE, MIB, World

PLAN = [(512, 0), (512, 512), (512, 1024)]


def used_by(world: World, *users: int | None, size: int = 512) -> int:
    """A block of the default stream, freed while `users` are still to read it."""
    block = world.take(size)
    world.fill(None, block, size, 7)
    for user in users:
        world.wait(user, None)
        world.check(user, block, size, 7)
        world.record_stream(block, user)
    world.release(block)
    return block


def again(world: World) -> int:
    """What the first request of the next step gets; it is freed at once."""
    world.native.next_step()
    block = world.take(512)
    world.release(block)
    return block


def test_a_block_is_not_reused_before_its_other_stream_is_done(world: World) -> None:
    world.plan([(512, 0)], 512)
    side = world.stream()
    block = used_by(world, side)
    world.native.next_step()
    second = world.take(512)
    assert second != block
    assert world.stats()["conflicts"] == world.stats()["pending_blocks"] == 1
    world.fill(None, second, 512, 8)
    world.advance(None)
    world.advance(side)
    world.native.next_step()
    assert world.take(512) == block
    assert world.stats()["pending_blocks"] == 0


def test_a_block_waits_for_every_stream_that_used_it(world: World) -> None:
    world.plan(PLAN, 1536)
    first, second = world.stream(), world.stream()
    block = used_by(world, first, second, first)
    assert world.counts()["cudaEventRecord"] == 2
    world.advance(None)
    world.advance(second)
    assert again(world) != block
    world.advance(first)
    assert again(world) == block


def test_torchs_own_blocks_are_torchs_to_keep_account_of(world: World) -> None:
    world.plan([(512, -1)], 512)
    side = world.stream()
    block = world.take(512)
    before = world.torch_counts()["recorded"]
    world.record_stream(block, side)
    assert world.torch_counts()["recorded"] == before + 1


@pytest.mark.parametrize("function", ["cudaEventCreate", "cudaEventRecord"])
def test_an_event_that_fails_is_made_up_for_later(world: World, function: str) -> None:
    world.plan(PLAN, 1536)
    side = world.stream()
    world.fail(function, code=LAUNCH_FAILURE)
    block = used_by(world, side)
    assert world.stats()["event_failures"] == 1
    assert again(world) != block  # which records it
    world.run_all()
    assert again(world) == block


def test_a_query_that_fails_only_puts_the_block_off(world: World) -> None:
    world.plan(PLAN, 1536)
    side = world.stream()
    block = used_by(world, side)
    world.run_all()
    world.fail("cudaEventQuery", count=2, code=LAUNCH_FAILURE)
    assert again(world) != block
    assert again(world) == block


# ---- memory that runs out


def test_out_of_memory_is_what_torch_says(world: World) -> None:
    world.plan([(MIB, 0)], 2 * MIB)
    world.cap(8 * MIB)
    world.take(MIB)
    assert world.allocate(16 * MIB) == "CUDA out of memory."
    assert world.allocate(1 << 62) == "CUDA out of memory."
    assert world.stats()["out_of_memory"] == 2


def test_an_unused_arena_is_given_back_first(world: World) -> None:
    world.plan([(512, -1), (4 * MIB, 0)], 4 * MIB)
    world.cap(8 * MIB)
    weight = world.take(512)
    world.release(world.take(4 * MIB))
    large = world.take(6 * MIB)
    stats = world.stats()
    assert (stats["arenas_given_back"], stats["arena_bytes"]) == (1, 0)
    world.release(large)
    # In the next step it is asked for again.
    world.native.next_step()
    world.take(512)
    planned = world.take(4 * MIB)
    assert world.stats()["arena_bytes"] == 4 * MIB
    assert world.native.holds(planned)
    world.release(planned)
    assert weight


def test_an_arena_in_use_takes_in_what_torch_cannot(world: World) -> None:
    # In the warm-up, what is not planned is asked of torch first.
    world.plan([(MIB, 0), (512, 0)], 4 * MIB, starts=(0, 1), loop_start=1)
    world.cap(5 * MIB)
    world.take(MIB)
    other = world.take(2 * MIB)
    assert world.native.holds(other)
    assert world.stats()["last_resort"] == 1


def test_an_arena_that_torch_refuses_is_done_without_and_told(world: World) -> None:
    world.plan([(MIB, 0)], 32 * MIB)
    world.cap(8 * MIB)
    for _ in range(5):
        block = world.take(MIB)
        assert not world.native.holds(block)
        world.release(block)
        world.release(world.take(512))
        world.native.next_step()
    # Once a step, and not for ever.
    assert world.stats()["arenas_refused"] == 3
    assert world.stats()["out_of_memory"] == 0


def test_another_failure_is_thrown_as_it_is(world: World) -> None:
    world.plan([(MIB, 0)], MIB)
    world.fail_otherwise(True)
    assert world.allocate(MIB) == "CUDA error: another"
    assert world.allocate(2 * MIB) == "CUDA error: another"
    world.fail_otherwise(False)
    world.native.next_step()
    block = world.take(MIB)
    assert world.native.holds(block)


# ---- pools and captures


def test_while_a_pool_is_open_torch_serves_all(world: World) -> None:
    world.plan(PLAN, 1536)
    world.take(512)
    assert world.begin_pool()
    assert world.begin_pool(number=2)
    world.end_pool(number=2)
    pooled = world.take(512)
    assert not world.native.holds(pooled)
    assert (world.stats()["in_pools"], world.stats()["requests"]) == (1, 1)
    world.end_pool()
    assert world.torch_counts()["pools"] == 0
    after = world.take(512)
    assert world.native.holds(after)


def test_what_a_pool_asks_for_keeps_its_place_in_the_step(world: World) -> None:
    """It was recorded, too: what comes after it must not be taken for it."""
    step = [(1024, -1), (1024, 0), (1024, 1024)]
    world.plan([*step, *step], 2048, starts=(0, 3), loop_start=1)
    for _ in range(4):
        assert world.begin_pool()
        pooled = world.take(1024)
        world.end_pool()
        first, second = world.take(1024), world.take(1024)
        assert world.native.holds(first)
        assert second - first == 1024
        world.release(pooled, first, second)
        world.native.next_step()
    stats = world.stats()
    assert (stats["in_pools"], stats["requests"], stats["planned"]) == (4, 8, 8)


def test_a_loop_without_marks_goes_on_in_a_pool(world: World) -> None:
    sizes = [512 * (i + 1) for i in range(12)]
    offsets = [sum(sizes[:i]) for i in range(12)]
    plan = list(zip(sizes, [-1, *offsets[1:]], strict=True))
    world.plan(plan, sum(sizes), unmarked=True)
    for turn in range(4):
        assert world.begin_pool()
        blocks = [world.take(sizes[0])]
        world.end_pool()
        blocks += [world.take(size) for size in sizes[1:]]
        held = [world.native.holds(block) for block in blocks]
        assert turn == 0 or held == [False] + [True] * 11
        world.release(*blocks)


def test_frees_under_capture_wait_for_its_end(world: World) -> None:
    world.plan(PLAN, 1536)
    side = world.stream()
    block = world.take(512)
    world.check(side, block, 512, 0)
    world.record_stream(block, side)
    world.begin_pool()
    world.capture(side, True)
    world.release(block)
    world.capture(side, False)
    world.end_pool()
    assert world.counts()["capture_violations"] == 0
    assert again(world) != block
    world.run_all()
    assert again(world) == block


# ---- random programs


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_under_changing_plans_share_no_byte(
    world: World, seed: int
) -> None:
    threads = 1 if seed % 2 else 4
    outcome = world.soak(20_000, threads, seed)
    assert outcome["requests"] >= 20_000
    assert outcome["served"] + outcome["out_of_memory"] == outcome["requests"]
    assert outcome["overlaps"] == outcome["unexpected"] == 0
    assert min(outcome["recorded"], outcome["exchanged"]) > 0
    stats = world.stats()
    assert min(stats["planned"], stats["online"], stats["conflicts"]) > 0
    assert stats["arenas_made"] > 10


@pytest.mark.soak
def test_a_million_requests_under_changing_plans_share_no_byte(world: World) -> None:
    outcome = world.soak(1_000_000, 4, 1)
    assert outcome["overlaps"] == outcome["unexpected"] == 0
    stats = world.stats()
    assert min(stats["arenas_refused"], stats["arenas_given_back"]) > 0


# ---- events
