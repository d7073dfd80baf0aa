"""When an arena is made: not before the program follows the plan."""

from __future__ import annotations

from memplan.applying.cuda_library import CudaReplay, Place
from tests.cuda.cuda_world import MIB, World

STEP = [(256 << 10, i * (256 << 10)) for i in range(16)]
ARENA = 4 * MIB
ALL = 1 << 62


def run_step(world: World, sizes: list[int]) -> list[bool]:
    """Take all, then free all; whether each lay in an arena. The step ends."""
    blocks = [world.take(size) for size in sizes]
    held = [world.native.holds(block) for block in blocks]
    world.release(*blocks)
    world.native.next_step()
    return held


def test_a_plan_for_another_batch_costs_no_arena(world: World) -> None:
    weights = [(MIB, -1), (MIB, -1)]
    world.plan([*weights, *STEP, *STEP], ARENA, starts=(0, 18), loop_start=1)
    for size, _ in weights:  # as planned, whatever the batch
        world.take(size)
    for _ in range(4):
        # A gradient now and then is of the planned size.
        assert not any(run_step(world, [384 << 10] * 6 + [256 << 10] * 3))
    stats = world.stats()
    assert (stats["arena_bytes_peak"], stats["planned"]) == (0, 0)
    assert stats["unplanned"] == 2


def test_small_requests_are_little_evidence(world: World) -> None:
    small = [(512, ARENA + i * 512) for i in range(8)]
    world.plan([*small, *STEP], ARENA + 4096)
    held = run_step(world, [size for size, _ in (*small, *STEP)])
    # From the one on with which it is enough, which has its planned place, too.
    assert held == [False] * 8 + [True] * 16
    assert (world.stats()["planned"], world.stats()["fallback"]) == (16, 8)


def test_a_warm_up_step_that_turns_out_another_gives_the_arena_up(world: World) -> None:
    world.plan([*STEP, *STEP], ARENA, starts=(0, 16), loop_start=1)
    beginning = [world.take(size) for size, _ in STEP[:4]]
    assert all(world.native.holds(block) for block in beginning)
    strangers = [world.take(MIB) for _ in range(4)]
    world.release(*beginning)
    assert world.stats()["arena_bytes"] == 0  # at once, not at the step's end
    world.release(*strangers)
    world.native.next_step()
    assert all(run_step(world, [size for size, _ in STEP]))


def test_what_is_torchs_as_planned_does_not_tell_against_the_plan(world: World) -> None:
    """As the workspace that cuBLAS asks for amid the first step."""
    first = [*STEP[:4], (16 * MIB, -1), *STEP[4:]]
    world.plan([*first, *STEP], ARENA, starts=(0, 17), loop_start=1)
    held = run_step(world, [size for size, _ in first])
    assert held == [True] * 4 + [False] + [True] * 12
    assert all(run_step(world, [size for size, _ in STEP]))


def test_a_step_unlike_the_plan_soon_goes_to_free_space_in_the_arena(
    world: World,
) -> None:
    world.plan([*STEP, *STEP, *STEP], ARENA, starts=(0, 16, 32), loop_start=2)
    blocks = [world.take(size) for size, _ in STEP]
    others = blocks[4:]
    world.release(*others)
    world.native.next_step()
    # Beside the arena comes what shows that the step is another, and no more.
    assert run_step(world, [384 << 10] * 6) == [False, True, True, True, True, True]


def test_an_arena_that_is_there_limits_other_plans(world: World) -> None:
    world.plan(STEP, ARENA)
    assert CudaReplay(world.native, Place()).reserved_bytes == ALL
    run_step(world, [size for size, _ in STEP])
    assert CudaReplay(world.native, Place()).reserved_bytes == ARENA
    assert CudaReplay(world.native, Place(0, 3)).reserved_bytes == 0
