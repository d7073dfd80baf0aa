"""CUDA blocks that lie by how long they live, in steps of any sizes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda.cuda_world import MIB, World

UNIT = 512
FAR = 1 << 40  # an offset that no arena has
STEP = [(MIB, FAR)] * 6
ARENA = 8 * MIB


def run_step(world: World, sizes: list[int]) -> list[int]:
    """Addresses of blocks that live till the step's end."""
    blocks = [world.take(size) for size in sizes]
    world.release(*blocks)
    world.native.next_step()
    return blocks


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


def test_a_program_of_much_smaller_sizes_gets_no_arena(world: World) -> None:
    world.plan(
        [*STEP, *STEP], ARENA, starts=(0, 6), loop_start=1, elastic=True, brief=()
    )
    for _ in range(3):
        run_step(world, [MIB // 4] * 6)
    assert world.stats()["arena_bytes_peak"] == 0
    run_step(world, [MIB * 3 // 4] * 6)
    assert world.stats()["arena_bytes_peak"] == ARENA


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
