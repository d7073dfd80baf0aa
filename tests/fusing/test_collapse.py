"""Operations become steps, steps sequences, and patches fit the cache."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_stacks import random_operations, random_pool

from memplan.errors import UsageError
from memplan.fusing.collapse import collapse, sizes, steps_of
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.patches import (
    Device,
    held,
)

MAX = Pool("max", (3, 3), (1, 1), (1, 1))
BLOCK = [Operation("pool", pool=MAX), Operation("affine"), Operation("relu")]
DEVICES = st.builds(
    Device,
    limit=st.sampled_from([1, 4096, 16384, 49152, 1 << 20]),
    lanes=st.sampled_from([1, 16]),
)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    source = random.Random(draw(st.integers(0, 2**30)))
    found: list[Operation] = []
    for kind in draw(st.lists(st.sampled_from("ep"), min_size=1, max_size=14)):
        if kind == "p":
            found.append(Operation("pool", pool=random_pool(source)))
        else:
            found += random_operations(source)
    return found


@given(operations())
def test_steps_are_full_and_lose_nothing(listed: list[Operation]) -> None:
    steps = steps_of(listed)
    assert [each for step in steps for each in step.operations] == listed
    for step in steps:
        kinds = [each.kind for each in step.operations]
        assert kinds.count("pool") <= 1
        pool = () if step.pool is None else (Operation("pool", pool=step.pool),)
        assert step.before + pool + step.after == step.operations
    for _, later in pairwise(steps):
        assert later.pool is not None  # else it had joined the step before
        assert later.before == ()


@given(operations(), DEVICES, st.sampled_from([1, 2, 5, None]))
def test_sequences_fit(
    listed: list[Operation], device: Device, most: int | None
) -> None:
    plane = (700, 900)
    pools = [each.pool for each in listed if each.pool is not None]
    try:
        sizes(pools, *plane)
    except UsageError:
        with pytest.raises(UsageError, match="nothing comes out"):
            collapse(listed, plane, device, most)
        return
    stack = collapse(listed, plane, device, most)
    assert stack.operations == tuple(listed)
    assert stack.steps == steps_of(listed)
    assert stack.out_size(*plane) == sizes(pools, *plane)[-1]
    for sequence in stack.sequences:
        assert most is None or len(sequence.steps) <= most
        assert sequence.bytes <= device.limit or len(sequence.steps) == 1
    if most == 1:
        assert len(stack.sequences) == len(stack.steps)


@given(operations(), st.integers(0, 60), st.integers(1, 60), st.integers(20, 200))
def test_a_patch_needs_what_its_windows_look_at(
    listed: list[Operation], start: int, count: int, size: int
) -> None:
    pools = [each.pool for each in listed if each.pool is not None]
    try:
        out = sizes(pools, size, size)[-1][0]
    except UsageError:
        return
    start = min(start, out - 1)
    stop = min(start + count, out)
    found = held(pools, 0, start, stop, size)
    planes = [each for each, _ in sizes(pools, size, size)[:-1]]
    for pool, extent in zip(reversed(pools), reversed(planes), strict=True):
        looked_at = [
            row * pool.stride[0] - pool.padding[0] + tap * pool.dilation[0]
            for row in range(start, stop)
            for tap in range(pool.kernel[0])
        ]
        assert found.pop() == max(looked_at) + 1 - min(looked_at)
        start, stop = max(min(looked_at), 0), min(max(looked_at) + 1, extent)
        if start >= stop:  # windows that lie in the padding altogether
            return


def test_a_stack_says_what_it_is() -> None:
    stack = collapse([Operation("relu"), *BLOCK * 2], (56, 56), Device(1 << 20), 1)
    assert list(map(str, stack.steps)) == [
        "relu, max 3 stride 1 padding 1, affine, relu",
        "max 3 stride 1 padding 1, affine, relu",
    ]
    assert [(each.patch, each.bytes) for each in stack.sequences] == [
        ((56, 56), 13456)
    ] * 2
    assert stack.operands == ("channel",) * 4


def test_signatures_tell_what_differs_in_code() -> None:
    device = Device(1 << 20)
    one = collapse(BLOCK * 2, (56, 56), device)
    assert one.signature == collapse(BLOCK * 2, (28, 30), device).signature
    others = [
        collapse(BLOCK * 2, (56, 56), device, 1),
        collapse(BLOCK, (56, 56), device),
        collapse([Operation("clamp", (0.0, 1 / 3))], (56, 56), device),
        collapse([Operation("clamp", (0.0, 0.3333))], (56, 56), device),
        collapse([Operation("pool", pool=MAX._replace(ceil=True))], (56, 56), device),
    ]
    assert len({stack.signature for stack in [one, *others]}) == 6


def test_a_pool_that_torch_refuses() -> None:
    pool = Pool("max", (3, 3), (1, 1), (2, 0))
    with pytest.raises(UsageError, match="half its kernel"):
        Operation("pool", pool=pool)
