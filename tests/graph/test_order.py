"""The order with the fewest live bytes: beside all orders of small graphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from memplan.graph.order import Tasks, least_peak, lower_bound
from tests.strategies import examples

pytestmark = pytest.mark.torch


@st.composite
def tasks(draw: st.DrawFn, most: int = 8) -> Tasks:
    """Up to `most` operators that each make one storage, some over an operand."""
    count = draw(st.integers(1, most))
    found = Tasks([], [], [], [], [], [], [], set())
    for i in range(count):
        earlier = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        found.before.append(sum(1 << each for each in earlier))
        found.makes.append([i])
        found.takes.append(sorted({*earlier, i}))
        found.size.append(draw(st.integers(1, 20)))
        found.users.append(1 << i)
        for each in earlier:
            found.users[each] |= 1 << i
        over = draw(st.sampled_from([None, *sorted(earlier)]))
        if over is not None:
            found.size[i] = found.size[over]
        found.over.append([] if over is None else [over])
        found.extra.append(draw(st.sampled_from([0, 0, 7])))
        if draw(st.booleans()):
            found.kept.add(i)
    return found


def least(tasks: Tasks) -> int:
    """The lowest peak of all orders."""
    whole = (1 << len(tasks.before)) - 1
    best = tasks.peak(range(len(tasks.before)))

    def run(done: int, level: int, peak: int) -> None:
        nonlocal best
        if done == whole:
            best = min(best, peak)
        for i, before in enumerate(tasks.before):
            if not done >> i & 1 and not before & ~done:
                up, change = tasks.needs(done, i)
                if max(peak, level + up) < best:
                    run(done | 1 << i, level + change, max(peak, level + up))

    run(0, 0, 0)
    return best


@examples(75, tasks(), soak=300)
def test_no_order_of_a_small_graph_is_better(tasks: Tasks) -> None:
    found = least_peak(tasks)
    done = 0
    for i in found.order:
        assert not tasks.before[i] & ~done
        done |= 1 << i
    assert done == (1 << len(tasks.before)) - 1
    assert tasks.peak(found.order) == found.peak == least(tasks) == found.bound
    assert found.proof in {"bound", "search"}
    assert lower_bound(tasks) <= found.peak


@given(tasks(12), st.integers(0, 30))
def test_little_effort_still_gives_an_order_and_a_true_bound(
    tasks: Tasks, effort: int
) -> None:
    found = least_peak(tasks, effort)
    assert sorted(found.order) == list(range(len(tasks.before)))
    assert found.bound <= least_peak(tasks).peak <= found.peak
    assert found.peak <= tasks.peak(range(len(tasks.before)))
    assert (found.proof == "") == (found.bound < found.peak)
