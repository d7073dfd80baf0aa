"""Under a plan torch is to reserve no more than it would without: a model of it tells.

Requests of 12 MiB have segments of their own, so what is reserved can be counted."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_world import MIB, World

BLOCK = 12 * MIB
STEP = [(BLOCK, i * BLOCK) for i in range(3)]
ARENA = 3 * BLOCK


def run_step(world: World) -> list[bool]:
    """A step as planned: whether each block lay in an arena."""
    blocks = [world.take(BLOCK) for _ in STEP]
    held = [world.native.holds(block) for block in blocks]
    world.release(*blocks)
    world.native.next_step()
    return held


class Freed:
    """How many segments torch has given back since."""

    def __init__(self, world: World) -> None:
        self._world, self._before = world, world.counts()["cudaFree"]

    def __call__(self) -> int:
        return self._world.counts()["cudaFree"] - self._before


@pytest.fixture
def freed(world: World) -> Freed:
    world.empty()
    return Freed(world)


def test_without_a_recording_an_arena_waits_for_what_it_replaces(
    world: World, freed: Freed
) -> None:
    world.plan(STEP, ARENA, reserved=0)
    assert not any(run_step(world))
    assert world.stats()["arenas_deferred"] == 1
    # As much was reserved now; it is given back, and the arena comes in its place.
    assert all(run_step(world))
    assert freed() == 3
    stats = world.stats()
    assert stats["native_bytes_peak"] == stats["arena_bytes_peak"] == ARENA


def test_an_arena_of_the_recorded_bytes_comes_at_once(
    world: World, freed: Freed
) -> None:
    world.plan(STEP, ARENA, reserved=ARENA)
    assert all(run_step(world))
    assert freed() == 0


def test_what_one_plan_expects_counts_for_that_one_alone(world: World) -> None:
    world.plan(STEP, ARENA, reserved=2 * ARENA)
    world.native.retire()
    world.plan(STEP, ARENA, reserved=0)
    assert not any(run_step(world))


def test_in_the_warm_up_what_torch_keeps_is_given_back_first(
    world: World, freed: Freed
) -> None:
    first = [(BLOCK + MIB, -1), *STEP]
    world.plan([*first, *STEP], ARENA, starts=(0, 4), loop_start=1, reserved=1 << 40)
    world.release(world.take(BLOCK + MIB))
    assert all(run_step(world))
    assert freed() == 1


# A weight, and steps of two blocks.
WEIGHT = BLOCK + MIB // 2
WITH_WEIGHT = ([(WEIGHT, -1), (BLOCK + MIB, 0), (BLOCK, BLOCK + MIB)], 2 * BLOCK + MIB)
NATIVELY = 2 * (BLOCK + 2 * MIB) + BLOCK


def test_an_empty_arena_gives_way_to_what_is_not_the_plan_s(world: World) -> None:
    world.plan(*WITH_WEIGHT, starts=(0, 1), loop_start=1, reserved=NATIVELY)
    world.take(WEIGHT)

    def step() -> list[bool]:
        world.native.next_step()
        blocks = [world.take(BLOCK + MIB), world.take(BLOCK)]
        held = [world.native.holds(block) for block in blocks]
        world.release(*blocks)
        return held

    assert all(step())
    world.native.next_step()
    copy = world.take(WEIGHT)  # natively a copy lies where a block did
    assert not world.native.holds(copy)
    assert (world.stats()["arena_bytes"], world.stats()["arenas_given_back"]) == (0, 1)
    world.release(copy)
    held = [step() for _ in range(9)]
    assert not any(map(any, held[:7]))
    assert all(held[-1])


@pytest.mark.parametrize(("reserved", "inside"), [(ARENA, True), (2 * ARENA, False)])
def test_what_departs_lies_in_the_arena_where_torch_has_no_room(
    world: World, reserved: int, inside: bool
) -> None:
    world.plan(STEP, ARENA, reserved=reserved)
    run_step(world)
    own, other = world.take(BLOCK), world.take(BLOCK - MIB)
    assert (world.native.holds(own), world.native.holds(other)) == (True, inside)
    assert world.stats()["online"] == int(inside)
    assert world.stats()["fallback"] == int(not inside)


def test_an_arena_that_costs_memory_goes_once_it_is_empty(world: World) -> None:
    world.plan([(ARENA, 0), (BLOCK, BLOCK)], ARENA, reserved=ARENA)
    for size in (ARENA, BLOCK):
        world.release(world.take(size))
    world.native.next_step()
    world.release(world.take(ARENA))
    own = world.take(BLOCK)  # in the middle
    large = world.take(2 * BLOCK)  # natively it would lie beside that
    assert [world.native.holds(block) for block in (own, large)] == [True, False]
    # Another one would have torch reserve even more.
    other = world.take(BLOCK - MIB)
    assert world.native.holds(other)
    world.release(own, large, other)
    assert world.stats()["arena_bytes"] == ARENA
    assert not world.native.holds(world.take(ARENA))
    assert (world.stats()["arena_bytes"], world.stats()["arenas_given_back"]) == (0, 1)


def test_before_a_larger_block_than_ever_what_is_too_small_is_given_back(
    world: World, freed: Freed
) -> None:
    world.plan(STEP, 100 * BLOCK, reserved=0, elastic=True, brief=())
    found = []
    for sizes in ([12, 12], [20], [20], [22]):  # MiB
        world.release(*[world.take(size * MIB) for size in sizes])
        world.native.next_step()
        found.append(freed())
    # Two of 12 make room for one of 20; that would not for one of 22.
    assert found == [0, 2, 2, 2]


def test_a_cache_that_the_program_empties_is_empty_in_the_model(world: World) -> None:
    world.plan(STEP, ARENA, reserved=0)
    run_step(world)
    world.empty()
    # Natively that makes room for this, and so it does here.
    world.release(world.take(ARENA))
    assert world.stats()["native_bytes_peak"] == ARENA


def test_what_no_device_holds_counts_for_nothing(world: World) -> None:
    world.plan(STEP, ARENA, reserved=0)
    run_step(world)
    assert isinstance(world.allocate(1 << 50), str)
    assert world.stats()["native_bytes_peak"] == ARENA
    # What torch kept it has given back, in search of memory.
    world.take(ARENA + BLOCK)
    assert world.stats()["native_bytes_peak"] == ARENA + BLOCK
