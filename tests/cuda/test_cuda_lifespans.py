"""CUDA blocks that lie by how long they live, in steps of any sizes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.applying.cuda_library import CudaReplay, Place
from tests.cuda.cuda_world import MIB, World

UNIT = 512
FAR = 1 << 40  # an offset that no arena has
STEP = [(MIB, FAR)] * 6
ARENA = 8 * MIB


def run_step(world: World, sizes: list[int]) -> list[int]:
    """Addresses of blocks that live till the step's end."""
    blocks = [world.take(size) for size in sizes]
    for block in blocks:
        world.release(block)
    world.native.next_step()
    return blocks


def test_brief_blocks_lie_at_a_holes_high_end_and_others_at_its_low_one(
    world: World,
) -> None:
    # Planned for the largest sizes they would take 12 KiB; no step has both.
    requests = [(4096, 0), (4096, 8192), (4096, 4096)]
    world.plan(requests, 8192, elastic=True, brief=(1,))
    base = None
    for sizes in [[4096, 1024, 3072], [2048, 4096, 2048], [512, 6144, 1024]]:
        kept, brief, last = run_step(world, sizes)
        base = base or kept
        assert (kept, last) == (base, base + sizes[0])
        assert brief + sizes[1] == base + 8192
    stats = world.stats()
    assert (stats["hot_planned"], stats["hot_fallback"], stats["conflicts"]) == (
        9,
        0,
        0,
    )
    assert stats["arena_bytes_peak"] == 8192
    world.assert_no_leak()


def test_what_finds_no_room_is_torchs(world: World) -> None:
    world.plan([(4096, 0), (4096, 0)], 4096, elastic=True, brief=())
    blocks = [world.take(4096), world.take(4096)]
    stats = world.stats()
    assert (stats["planned"], stats["conflicts"], stats["fallback"]) == (1, 1, 1)
    assert world.torch_counts()["live"] == 2
    for block in blocks:
        world.release(block)
    world.assert_no_leak()


def test_a_step_of_more_requests_or_fewer_is_served_all_the_same(world: World) -> None:
    world.plan(STEP, ARENA, elastic=True, brief=())
    for count in [6, 4, 7, 6, 5, 7] * 3:
        run_step(world, [MIB] * count)
    stats = world.stats()
    assert stats["hot_fallback"] == stats["conflicts"] == 0
    # The seventh has no place in the plan, but room.
    assert (stats["hot_planned"], stats["hot_online"]) == (
        (6 + 4 + 6 + 6 + 5 + 6) * 3,
        6,
    )
    world.assert_no_leak()


def test_a_block_larger_than_any_planned_lies_there_if_there_is_room(
    world: World,
) -> None:
    world.plan(STEP, ARENA, elastic=True, brief=())
    run_step(world, [MIB] * 6)
    run_step(world, [2 * MIB] * 3)
    stats = world.stats()
    assert (stats["hot_planned"], stats["hot_fallback"]) == (9, 0)
    steps = CudaReplay(world.native, Place()).take_steps()
    assert [counts["outgrown"] for _, counts in steps] == [0, 0]
    world.assert_no_leak()


# ---- the warm-up


def test_in_the_warm_up_blocks_lie_so_too(world: World) -> None:
    requests = [(MIB, FAR)] * 4
    world.plan(
        requests, 2 * MIB, starts=(0, 2), loop_start=1, elastic=True, brief=(1, 3)
    )
    for _ in range(3):
        first, second = run_step(world, [MIB, MIB])
        assert second - first == MIB
    assert world.stats()["planned"] == 6
    world.assert_no_leak()


def test_a_warm_up_of_other_sizes_has_its_blocks_there_but_for_weights(
    world: World,
) -> None:
    weight, state = (3 * MIB, -1), (3 * MIB, -1)
    warmup = [weight, (MIB, FAR), (MIB, FAR), (512, FAR), (MIB, FAR), state]
    world.plan(
        [*warmup, *STEP], ARENA, starts=(0, 6), loop_start=1, elastic=True, brief=()
    )
    kept = [world.take(3 * MIB)]
    # One of them is not asked for, where sizes are smaller.
    inside = [world.take(size) for size in (700 << 10, 700 << 10, 600 << 10)]
    kept.append(world.take(3 * MIB))
    assert inside[1] - inside[0] == 700 << 10
    stats = world.stats()
    assert (stats["planned"], stats["unplanned"], stats["fallback"]) == (3, 2, 0)
    assert stats["in_use_bytes"] == 2000 << 10
    for block in (*inside, *kept):
        world.release(block)
    world.assert_no_leak()


STATE = 2 * MIB  # of a weight, its gradient, and the optimizer's two states
PASS = [(MIB, FAR), *[(1024, FAR)] * 20, (700 << 10, FAR)]  # a micro-batch
GRADIENT = (STATE, FAR)


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
def test_a_warm_up_that_does_more_or_less_keeps_its_states_with_torch(
    world: World, passes: int
) -> None:
    # Recorded with two micro-batches: the second one's gradient is added to the first.
    states = [(512, -1), (STATE, -1), (STATE, -1)]
    temporary = [(4096, FAR), (STATE, FAR)]
    warmup = [(STATE, -1), *[*PASS, GRADIENT] * 2, *states, *temporary]
    world.plan([*warmup, *STEP], ARENA, starts=(0, len(warmup)), loop_start=1, brief=())
    weight = world.take(STATE)
    for size, _ in PASS:
        world.release(world.take(size))
    inside = [world.take(STATE)]
    for _ in range(passes - 1):
        for size, _ in [*PASS, GRADIENT]:
            world.release(world.take(size))
    kept = [weight, *(world.take(size) for size in (512, STATE, STATE))]
    inside += [world.take(4096), world.take(STATE)]
    assert [world.native.holds(block) for block in inside] == [True] * 3
    assert [world.native.holds(block) for block in kept] == [False] * 4
    assert world.stats()["in_use_bytes"] == 4096 + 2 * STATE
    for block in (*inside, *kept):
        world.release(block)
    world.assert_no_leak()


def test_blocks_of_a_weights_size_by_chance_do_not_tell_against_the_plan(
    world: World,
) -> None:
    weights = [(3 * MIB, -1), (2 * MIB, -1)]
    warmup = [*weights, *[(MIB, FAR)] * 30]
    world.plan([*warmup, *STEP], ARENA, starts=(0, 32), loop_start=1, brief=())
    kept = [world.take(size) for size, _ in weights]
    for size in (2 * MIB, 700 << 10, 2 * MIB, 700 << 10, 700 << 10):
        world.release(world.take(size))
    assert world.stats()["arena_bytes"] == ARENA
    for block in kept:
        world.release(block)
    world.assert_no_leak()


def test_strangers_in_the_warm_up_have_room_in_the_arena(world: World) -> None:
    world.plan([*STEP, *STEP], ARENA, starts=(0, 6), loop_start=1, brief=())
    blocks = [world.take(MIB) for _ in range(6)]
    blocks += [world.take(size) for size in (512, MIB, 3000)]  # beyond what was planned
    stats = world.stats()
    assert (stats["fallback"], stats["online"]) == (0, 3)
    for block in blocks:
        world.release(block)
    world.native.next_step()
    run_step(world, [MIB] * 6)
    assert world.stats()["arena_bytes"] == ARENA  # it was not held for another step's
    world.assert_no_leak()


@pytest.mark.parametrize("brief", [(), (0,)])
def test_the_block_that_an_arena_is_made_for_lies_as_the_others(
    world: World, brief: tuple[int, ...]
) -> None:
    world.plan([(ARENA // 4, FAR), (MIB, FAR)], ARENA, brief=brief)
    first, second = world.take(ARENA // 4), world.take(MIB)
    base = second if brief else first
    assert (first - base, second - base) == (
        (ARENA - ARENA // 4, 0) if brief else (0, ARENA // 4)
    )
    for block in (first, second):
        world.release(block)
    world.assert_no_leak()


def test_a_program_of_much_smaller_sizes_gets_no_arena(world: World) -> None:
    world.plan(
        [*STEP, *STEP], ARENA, starts=(0, 6), loop_start=1, elastic=True, brief=()
    )
    for _ in range(3):
        run_step(world, [MIB // 4] * 6)
    assert world.stats()["arena_bytes_peak"] == 0
    run_step(world, [MIB * 3 // 4] * 6)
    assert world.stats()["arena_bytes_peak"] == ARENA
    world.assert_no_leak()


# ---- what torch keeps beside the arena


def test_a_loop_is_settled_only_after_some_steps(world: World) -> None:
    asked = []

    def permission(device: int, rank: int, size: int, hot: bool) -> bool:
        asked.append((size, hot))
        return False

    world.plan(STEP, ARENA, elastic=True, brief=())
    world.native.ask(permission)
    for _ in range(26):
        run_step(world, [MIB] * 6)
    # Again after 8 steps, and then after 16.
    assert asked == [(ARENA, False), (ARENA, False), (ARENA, True)]
    world.assert_no_leak()


@pytest.mark.parametrize("allowed", [True, False])
def test_before_ever_larger_blocks_come_beside_it_torch_is_to_give_back(
    world: World, allowed: bool
) -> None:
    asked = []

    def permission(device: int, rank: int, size: int, hot: bool) -> bool:
        asked.append((size, hot))
        return allowed or size == ARENA

    world.plan([*STEP, *STEP], ARENA, elastic=True, brief=())
    world.native.ask(permission)
    run_step(world, [MIB] * 6)
    sizes = [3 * MIB, 2 * MIB, 3 * MIB, 3 * MIB, 4 * MIB, 4 * MIB, 4 * MIB]
    for size in sizes:
        run_step(world, [6 * MIB, size, 512, ARENA // 64 - 512])
    # The first so large, and the first after a step that had more of them than any.
    wanted = [ARENA, 3 * MIB, 3 * MIB, 4 * MIB, 4 * MIB]
    assert asked == [(size, False) for size in wanted]
    # Six of them; 2 MiB had room, but those after it had none, which are small.
    assert world.stats()["fallback"] == 6 + 2
    world.assert_no_leak()


def test_small_blocks_beside_it_are_no_matter(world: World) -> None:
    asked = []

    def permission(device: int, rank: int, size: int, hot: bool) -> bool:
        asked.append(size)
        return True

    world.plan([*STEP, *STEP], ARENA, elastic=True, brief=())
    world.native.ask(permission)
    run_step(world, [ARENA, ARENA // 64 - 512])
    assert world.stats()["fallback"] == 1
    assert asked == [ARENA]
    world.assert_no_leak()


# ---- against a plain placement


class Plain:
    """An arena as a list of its units, used or not."""

    def __init__(self, units: int) -> None:
        self.used = [False] * units

    def take(self, units: int, high: bool) -> int | None:
        holes, begin = [], 0
        for end, used in enumerate([*self.used, True]):
            if used:
                holes += [(end - begin, begin)] if end - begin >= units else []
                begin = end + 1
        if not holes:
            return None
        length, begin = min(holes)
        begin += length - units if high else 0
        self.used[begin : begin + units] = [True] * units
        return begin

    def free(self, begin: int, units: int) -> None:
        self.used[begin : begin + units] = [False] * units


BLOCKS = st.tuples(st.integers(1, 12), st.integers(0, 9))  # units, requests till freed


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.booleans(), min_size=4, max_size=9),
    st.lists(st.lists(BLOCKS, min_size=4, max_size=11), min_size=1, max_size=6),
    st.integers(24, 60),
)
def test_steps_of_any_sizes_lie_where_a_plain_placement_puts_them(
    world: World,
    hints: list[bool],
    steps: list[list[tuple[int, int]]],
    units: int,
) -> None:
    plain = Plain(units)  # a world whose plans are retired is as a new one
    brief = tuple(i for i, hint in enumerate(hints) if hint)
    world.plan([(12 * UNIT, FAR)] * len(hints), units * UNIT, elastic=True, brief=brief)
    made = world.take(12 * UNIT)  # enough for the arena to be there
    base = made - (units - 12) * UNIT if hints[0] else made
    world.release(made)
    world.native.next_step()
    due: list[tuple[int, int, int | None, int]] = []  # when, address, begin, units
    now = 0
    for step in steps:
        for i, (size, life) in enumerate(step):
            for each in [each for each in due if each[0] <= now]:
                due.remove(each)
                world.release(each[1])
                if each[2] is not None:
                    plain.free(each[2], each[3])
            begin = plain.take(size, i < len(hints) and hints[i])
            address = world.take(size * UNIT)
            inside = base <= address < base + units * UNIT
            assert inside == (begin is not None)
            assert begin is None or address == base + begin * UNIT
            due.append((now + life, address, begin, size))
            now += 1
        world.native.next_step()
    for _, address, _, _ in due:
        world.release(address)
    world.assert_no_leak()
