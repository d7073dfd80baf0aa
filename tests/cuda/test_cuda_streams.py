"""Blocks that other streams use, failures of CUDA, and graph capture."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_world import LAUNCH_FAILURE, MIB, World


def used_by(world: World, user: int | None, size: int = 512) -> int:
    """A block of the default stream that `user` reads, freed with that read queued."""
    block = world.take(size)
    world.fill(None, block, size, 7)
    world.wait(user, None)
    world.check(user, block, size, 7)
    world.record_stream(block, user)
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
    world.release(block)
    world.release(second)
    world.assert_no_leak()


def test_a_block_waits_for_every_stream_that_used_it(world: World) -> None:
    first, second = world.stream(), world.stream()
    block = world.take(512)
    for user in (first, second, first):
        world.check(user, block, 512, 0)
        world.record_stream(block, user)
    world.release(block)
    assert world.counts()["cudaEventRecord"] == 2
    world.advance(second)
    assert world.take(512) != block
    world.advance(first)
    assert world.take(512) == block


def test_a_block_used_on_its_own_stream_only_needs_no_event(world: World) -> None:
    side = world.stream()
    block = world.take(512, side)
    world.record_stream(block, side)
    world.record_stream(block + 512, side)
    world.release(block)
    assert world.take(512, side) == block
    assert world.counts()["cudaEventRecord"] == 0


def test_events_are_used_again(world: World) -> None:
    side = world.stream()
    for _ in range(20):
        used_by(world, side)
        world.run_all()
    assert world.counts()["cudaEventRecord"] == 20
    assert world.counts()["cudaEventCreate"] <= 2
    world.assert_no_leak()


def test_events_are_of_the_blocks_device(world: World) -> None:
    side = world.stream(device=1)
    block = world.take(512, device=1)
    world.record_stream(block, side)
    world.release(block, device=1)
    world.run_all()
    assert world.stats(1)["event_failures"] == 0
    assert world.take(512, device=1) == block


@pytest.mark.parametrize("function", ["cudaEventCreate", "cudaEventRecord"])
def test_an_event_that_fails_is_made_up_for_later(world: World, function: str) -> None:
    side = world.stream()
    world.fail(function, count=2, code=LAUNCH_FAILURE)
    block = used_by(world, side)
    assert world.stats()["pending_blocks"] == 1
    assert world.take(512) != block
    world.advance(None)
    assert world.take(512) != block  # recorded by now, and behind the read
    world.advance(side)
    assert world.take(512) == block
    assert world.stats()["event_failures"] == 2
    world.assert_sound()


def test_one_event_of_two_does_not_free_a_block(world: World) -> None:
    users = world.stream(), world.stream()
    block = world.take(512)
    for user in users:
        world.check(user, block, 512, 0)
        world.record_stream(block, user)
    world.fail("cudaEventRecord", skip=1, count=3, code=LAUNCH_FAILURE)
    world.release(block)
    for _ in range(2):
        world.advance(users[1])  # the one whose event was recorded
        assert world.take(512) != block
    world.run_all()
    world.take(512)  # by now the other's is, too
    world.run_all()
    assert world.take(512) == block
    world.assert_sound()


def test_a_query_that_fails_only_puts_the_block_off(world: World) -> None:
    side = world.stream()
    block = used_by(world, side)
    world.run_all()
    world.fail("cudaEventQuery", code=LAUNCH_FAILURE)
    assert world.take(512) != block
    assert world.take(512) == block
    assert world.stats()["event_failures"] == 1


def test_out_of_memory_is_raised_in_torchs_words(world: World) -> None:
    world.cap(4 * MIB)
    block = world.take(3 * MIB)
    message = str(world.allocate(2 * MIB))
    assert message.startswith(
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of "
        "4.00 MiB of which 1.00 MiB is free."
    )
    assert world.stats()["out_of_memory"] == 1
    world.release(block)
    world.release(world.take(2 * MIB))
    world.assert_no_leak()


def test_a_size_beyond_all_bounds_is_out_of_memory(world: World) -> None:
    assert "CUDA out of memory" in str(world.allocate(-1))
    assert "CUDA out of memory" in str(world.allocate((1 << 62) + 1))


def test_memory_kept_back_is_released_before_giving_up(world: World) -> None:
    world.cap(4 * MIB)
    world.native.set_cache_limit(100 * MIB)
    blocks = [world.take(MIB) for _ in range(4)]
    for block in blocks:
        world.fill(None, block, MIB, 1)
        world.release(block)
    large = world.take(4 * MIB)
    assert world.stats()["retries"] == 1
    assert world.stats()["cached_bytes"] == 0
    world.release(large)
    world.assert_no_leak()


def test_blocks_in_use_elsewhere_are_waited_for_before_giving_up(world: World) -> None:
    world.cap(4 * MIB)
    side = world.stream()
    used_by(world, side, 4 * MIB)
    large = world.take(3 * MIB)
    assert world.stats()["pending_blocks"] == 0
    world.release(large)
    world.assert_no_leak()


def test_blocks_without_events_are_waited_for_by_the_whole_device(
    world: World,
) -> None:
    world.cap(4 * MIB)
    world.fail("cudaEventRecord", count=100, code=LAUNCH_FAILURE)
    used_by(world, world.stream(), 4 * MIB)
    large = world.take(3 * MIB)
    assert world.counts()["cudaDeviceSynchronize"] > 0
    world.release(large)
    world.assert_no_leak()


def test_a_block_that_is_in_use_again_meanwhile_is_not_settled(world: World) -> None:
    """The device was waited for; what another thread put on it since, was not."""
    world.cap(4 * MIB)
    side = world.stream()
    world.fail("cudaEventRecord", count=100, code=LAUNCH_FAILURE)
    used_by(world, side, 4 * MIB)

    def meanwhile() -> None:
        world.fail("cudaEventRecord", count=0)
        world.native.empty_cache()  # makes up for the event
        world.run_all()
        again = world.take(4 * MIB)
        world.fail("cudaEventRecord", count=100, code=LAUNCH_FAILURE)
        world.record_stream(again, side)
        world.fill(side, again, 4 * MIB, 2)
        world.release(again)

    world.once_synchronized(meanwhile)
    assert str(world.allocate(3 * MIB)).startswith("CUDA out of memory")
    assert world.stats()["pending_blocks"] == 1
    world.fail("cudaEventRecord", count=0)
    world.assert_no_leak()


def test_a_device_that_cannot_be_waited_for_frees_nothing(world: World) -> None:
    world.cap(4 * MIB)
    world.fail("cudaEventRecord", count=100, code=LAUNCH_FAILURE)
    world.fail("cudaDeviceSynchronize", count=100, code=LAUNCH_FAILURE)
    used_by(world, world.stream(), 4 * MIB)
    assert str(world.allocate(3 * MIB)).startswith("CUDA out of memory")
    assert world.stats()["pending_blocks"] == 1
    world.fail("cudaEventRecord", count=0)
    world.fail("cudaDeviceSynchronize", count=0)
    world.release(world.take(3 * MIB))
    world.assert_no_leak()


def test_the_arena_takes_in_what_cuda_cannot(world: World) -> None:
    world.plan([(512, 0), (512, 0)], 2 * MIB, starts=(0, 1), loop_start=1)
    world.cap(2 * MIB)
    stranger = world.take(MIB)  # in the warm-up, where departures go to CUDA
    assert world.stats()["fallback"] == world.stats()["retries"] == 1
    world.release(stranger)
    world.assert_no_leak()


def test_an_arena_that_cuda_refuses_is_done_without(world: World) -> None:
    world.plan([(512, 0)], 8 * MIB)
    world.cap(4 * MIB)
    block = world.take(512)
    stats = world.stats()
    assert (stats["fallback"], stats["arena_bytes"]) == (1, 0)
    assert stats["other_stream"] == 0
    world.release(block)
    world.assert_no_leak()


def test_another_failure_of_cuda_is_raised_as_it_is(world: World) -> None:
    world.fail("cudaMalloc", code=LAUNCH_FAILURE)
    message = str(world.allocate(2 * MIB))
    assert message == (
        "CUDA error: unspecified launch failure (2.00 MiB asked of GPU 0)"
    )
    assert world.stats()["retries"] == 0
    world.release(world.take(2 * MIB))
    world.assert_no_leak()


def test_a_failed_arena_does_not_hide_the_failure(world: World) -> None:
    world.plan([(512, 0)], 512)
    world.fail("cudaMalloc", count=2, code=LAUNCH_FAILURE)
    assert str(world.allocate(512)).startswith("CUDA error: ")
    world.release(world.take(512))
    world.assert_no_leak()


def test_what_cuda_does_not_take_back_is_kept_or_counted(world: World) -> None:
    block = world.take(MIB)
    world.release(block)
    world.fail("cudaDeviceSynchronize", code=LAUNCH_FAILURE)
    world.native.empty_cache()
    assert world.stats()["cached_bytes"] == MIB
    world.fail("cudaFree", code=LAUNCH_FAILURE)
    world.native.empty_cache()
    stats = world.stats()
    assert (stats["cached_bytes"], stats["stranded_blocks"]) == (0, 1)
    assert stats["reserved_bytes"] == MIB


def test_a_request_under_capture_is_refused_and_leaves_it_whole(world: World) -> None:
    side = world.stream()
    world.release(world.take(512, side))
    before = world.counts()
    world.capture(side, True)
    assert "under CUDA graph capture" in str(world.allocate(512, side))
    assert "without CUDA graphs" in str(world.allocate(512))  # it may depend on it
    after = world.counts()
    world.capture(side, False)
    assert world.stats()["refused_captures"] == 2
    for name in ("cudaMalloc", "cudaEventQuery", "cudaEventRecord"):
        assert after[name] == before[name]
    assert world.take(512, side)
    world.assert_sound()


def test_frees_under_capture_wait_for_its_end(world: World) -> None:
    world.native.set_cache_limit(0)
    side = world.stream()
    alone, shared = world.take(512), world.take(512)
    world.record_stream(shared, side)
    world.capture(side, True)
    world.release(alone)
    world.release(shared)
    world.native.empty_cache()
    assert world.counts()["capture_violations"] == 0
    assert world.counts()["cudaFree"] == 0
    assert world.stats()["pending_blocks"] == 1
    world.capture(side, False)
    world.run_all()
    assert world.take(512) in (alone, shared)
    world.assert_sound()


def test_while_a_pool_is_open_nothing_is_waited_for(world: World) -> None:
    world.cap(4 * MIB)
    side = world.stream()
    cached = world.take(MIB)
    shared = used_by(world, side, MIB)
    world.release(cached)
    world.pool(True)
    world.run_all()
    before = world.counts()
    assert "out of memory" in str(world.allocate(3 * MIB))
    other = used_by(world, side, MIB)
    world.native.empty_cache()
    after = world.counts()
    for name in ("EventQuery", "EventRecord", "EventSynchronize", "DeviceSynchronize"):
        assert after[f"cuda{name}"] == before[f"cuda{name}"], name
    assert world.stats()["pending_blocks"] == 2
    world.pool(False)
    world.run_all()
    assert world.take(MIB) in (shared, other)
    world.assert_sound()


SMALL, LARGE = 20_000, 1_000_000


def soak(world: World, requests: int, threads: int, seed: int) -> None:
    outcome = world.soak(requests, threads, seed)
    assert outcome["requests"] == requests
    assert outcome["overlaps"] == outcome["unexpected"] == 0
    lost = outcome["out_of_memory"] + outcome["other_errors"]
    assert outcome["served"] == requests - lost
    assert 0 < lost < requests // 100
    assert (outcome["captured"] > 0) == (threads == 1)
    stats, seen = world.stats(), world.counts()
    for name in ("planned", "unplanned", "conflicts", "online", "fallback", "retries"):
        assert stats[name] > 0, name
    assert stats["event_failures"] > 0
    assert seen["injected"] > requests // 200
    served = ("planned", "unplanned", "online", "fallback")
    assert stats["requests"] == sum(stats[name] for name in served)
    assert stats["allocated_bytes"] == stats["stranded_blocks"] == 0
    world.assert_no_leak()
    assert world.stats()["reserved_bytes"] == world.stats()["active_bytes"] == 0


@pytest.mark.parametrize(("threads", "seed"), [(1, 1), (1, 2), (4, 3)])
def test_random_programs_with_failures_share_no_byte(
    world: World, threads: int, seed: int
) -> None:
    soak(world, SMALL, threads, seed)


@pytest.mark.soak
@pytest.mark.parametrize(("threads", "seed"), [(1, 11), (4, 12)])
def test_a_million_requests_with_failures_share_no_byte(
    world: World, threads: int, seed: int
) -> None:
    soak(world, LARGE, threads, seed)
