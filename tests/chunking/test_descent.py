"""The way down to a budget, with modules that are numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from torch import nn

import memplan
from memplan.chunking.canonical import searchable
from memplan.chunking.descent import Descent
from memplan.chunking.options import Effort
from memplan.chunking.recompute import as_cheap
from memplan.chunking.search import Search
from memplan.chunking.timing import Costs, Machine
from memplan.chunking.trial import Trial
from memplan.graph.call import Signature
from memplan.graph.capture import Exports, export_parts
from memplan.graph.program import Op, Program
from tests.chunking.models import attention, conv, mlp, skips

pytestmark = pytest.mark.torch
ENDLESS = Effort(seconds=math.inf)


@dataclass
class Counted:
    """Modules are trials that need `more` times their estimate and take `slower` times
    as long; each is built once."""

    before: int
    more: float = 1.0
    slower: float = 1.0
    known: bool = True
    interrupted: bool = False
    internal_errors: Counter[str] = field(default_factory=Counter)
    built: list[Trial] = field(default_factory=list)

    def build(self, trials: Mapping[str, Trial], limit: int) -> Trial | None:
        (trial,) = trials.values()
        self.built.append(trial)
        return trial

    def peak(self, module: Trial) -> int:
        return int(self.more * module.peak)

    def settled(self, module: Trial, enough: float) -> bool:
        return self.known and self.slower <= enough

    def slowdown(self, module: Trial) -> float:
        return self.slower

    def is_fast(self, module: Trial, enough: float) -> bool:
        return self.slowdown(module) <= enough

    def fastest(self, modules: Sequence[Trial], enough: float) -> Trial:
        return modules[0]


@pytest.fixture(scope="module")
def exports() -> Exports:
    model, x = attention(tokens=256)
    return export_parts(model, Signature().arranged(model, (x,), {}), searchable)


def descent(exports: Exports, bench: Any, **given: Any) -> Any:
    options = memplan.ChunkOptions(effort=ENDLESS, max_slowdown=2.0)
    costs = given.pop("costs", Costs(Machine()))
    return Descent(exports, bench, costs, 1.0, options, **given)


def whole(exports: Exports) -> int:
    bench = Counted(0)
    return int(descent(exports, bench).within(1 << 40)[0].peak)


def test_a_bench_that_knows_builds_one_module(exports: Exports) -> None:
    before = whole(exports)
    for known in (True, False):
        bench = Counted(before, known=known)
        found = descent(exports, bench).within(before // 2)
        assert len(found) == len(bench.built)
        assert len(found) == 1 if known else len(found) > 1
        assert all(bench.peak(each) <= before // 2 for each in found)


def test_what_needs_more_than_estimated_has_a_lower_goal(exports: Exports) -> None:
    before = whole(exports)
    bench = Counted(before, more=1.3)
    (found,) = descent(exports, bench, built=1).within(before // 2)
    assert bench.peak(found) <= before // 2
    assert len(bench.built) > 1
    assert bench.peak(bench.built[0]) > before // 2


class Keeping(Counted):
    """Only what is computed again takes no more than estimated."""

    def peak(self, module: Trial) -> int:
        return module.peak if module.again else 2 * module.peak


def test_other_values_are_computed_again_where_estimates_fail() -> None:
    model, x = skips("transposed")
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    before = whole(exports)
    bench = Keeping(before)
    (found,) = descent(exports, bench, built=1).within(int(0.6 * before))
    assert found.again and bench.peak(found) <= 0.6 * before
    assert not bench.built[0].again


@dataclass
class Growing(Counted):
    """What lies beside a trial's memory in an arena."""

    beside: int = 0

    def peak(self, module: Trial) -> int:
        return module.peak + self.beside


def marks(modules: Sequence[Trial]) -> list[str]:
    return [repr((each.again, each.regions)) for each in modules]


@pytest.mark.parametrize(
    ("built", "slower"),
    [
        (1, 3.0),
        (2, 1.0),
        pytest.param(1, 1.0, marks=pytest.mark.soak),
        pytest.param(2, 3.0, marks=pytest.mark.soak),
    ],
)
def test_no_module_is_built_twice(built: int, slower: float) -> None:
    model, x = skips("transposed")
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    before = whole(exports)
    for share, limit in ((10, 0.6), (20, 0.6), (10, 0.45), (30, 0.6), (40, 0.5)):
        bench = Growing(before, slower=slower, beside=share * before // 100)
        search = descent(exports, bench, built=built)
        most = int(limit * before)
        found = search.within(most)
        assert len(bench.built) == len(set(marks(bench.built)))
        peaks = [bench.peak(each) for each in bench.built]
        assert bench.peak(search.nearest) == min(peaks)
        assert marks(found) == marks([x for x in bench.built if bench.peak(x) <= most])


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_goals_go_on_down_where_other_values_bring_nothing_new(
    slower: float,
) -> None:
    """Until a module fits, fast enough or not."""
    first, x = attention(256)
    model = nn.Sequential(first, attention()[0]).eval()
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    before = whole(exports)
    bench = Growing(before, slower=slower, beside=int(0.3 * before))
    (found,) = descent(exports, bench, built=1).within(before // 2)
    assert bench.peak(found) <= before // 2
    assert len(bench.built) == len(set(marks(bench.built)))


def test_the_nearest_is_built_once(exports: Exports) -> None:
    bench = Counted(whole(exports))
    search = descent(exports, bench)
    assert search.within(10) == []
    assert bench.built == [search.nearest]


def test_the_least_is_fast_enough_or_known_to_be_slow(exports: Exports) -> None:
    before = whole(exports)
    bench = Counted(before)
    module, fast = descent(exports, bench).least()
    assert fast and bench.peak(module) == min(map(bench.peak, bench.built)) < before
    slow, fast = descent(exports, replace(bench, slower=3.0)).least()
    assert not fast and bench.peak(slow) < before


class Timed(Counted):
    """A module takes a second to build, and is too slow below half of the model."""

    def is_fast(self, module: Trial, enough: float) -> bool:
        return self.peak(module) >= self.before // 2

    def settled(self, module: Trial, enough: float) -> bool:
        return False


@pytest.mark.parametrize("share", [1, 4])
def test_the_least_is_fast_enough_also_if_time_is_short(
    exports: Exports, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """Of as much as the way to the lowest takes, or a part of that, some is left."""
    bench = Timed(whole(exports))
    lowest = descent(exports, bench).lowest()
    assert not bench.is_fast(lowest, 2.0)
    count = len(bench.built)
    bench = replace(bench, built=[])
    clock = SimpleNamespace(monotonic=lambda: float(len(bench.built)))
    monkeypatch.setattr("memplan.chunking.descent.time", clock)
    limit = count / share
    options = memplan.ChunkOptions(effort=ENDLESS, max_slowdown=2.0, time_limit=limit)
    limited = Descent(exports, bench, Costs(Machine()), 1.0, options)
    module, fast = limited.least()
    assert fast and bench.before > bench.peak(module) >= bench.before // 2
    assert len(bench.built) <= count + 1


class Unsure(Counted):
    """No module is clearly slow; below a share of the model they seem so."""

    share: float = 0.5

    def slowdown(self, module: Trial) -> float:
        return 2.5 if self.peak(module) < self.share * self.before else 1.5

    def is_fast(self, module: Trial, enough: float) -> bool:
        return True


def test_the_least_seems_fast_where_any_does(exports: Exports) -> None:
    bench = Unsure(whole(exports))
    lowest = descent(exports, bench).lowest()
    assert lowest is not None and bench.slowdown(lowest) > 2
    module, fast = descent(exports, bench).least()
    assert fast and bench.before // 2 <= bench.peak(module) < bench.before
    bench.share = 1.0  # all of them seem slow
    module, fast = descent(exports, bench).least()
    assert fast and bench.peak(module) == bench.peak(lowest)


@pytest.mark.parametrize(("share", "built"), [(0.0, 1), (1.0, 2)])
def test_one_that_seems_slow_does_not_end_the_building(
    exports: Exports, share: float, built: int
) -> None:
    bench = Unsure(whole(exports), known=False)
    bench.share = share
    descent(exports, bench, built=1).within(bench.before // 2, until="fast")
    assert len(bench.built) == built


SOAK = pytest.mark.soak  # like the others, with more of the same


@pytest.mark.parametrize(
    "up",
    [
        "transposed",
        pytest.param("nearest", marks=SOAK),
        pytest.param("bilinear", marks=SOAK),
    ],
)
def test_the_least_is_no_more_than_what_a_budget_finds(up: str) -> None:
    model, x = skips(up)
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    before = whole(exports)
    least, _ = descent(exports, Counted(before), built=1).least()
    shares = [50, 40, 30, 25, 20, 10]
    found = [
        descent(exports, Counted(before), built=1).within(before * share // 100)
        for share in shares
    ]
    assert found[0] and not found[-1]
    assert all(least.peak <= each.peak for within in found for each in within)


class Failing(Counted):
    """A model of which only one small module is right."""

    right: int = 0

    def build(self, trials: Mapping[str, Trial], limit: int) -> Trial | None:
        made = super().build(trials, limit)
        return made if limit <= self.right else None


def test_the_least_goes_on_below_a_budget_that_fails(exports: Exports) -> None:
    bench = Failing(whole(exports))
    bench.right = bench.before // 4
    module, fast = descent(exports, bench).least()
    assert fast and bench.peak(module) <= bench.before // 4


def test_a_trial_that_fits_counts_although_the_time_is_up(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found in the last round."""
    (target,) = exports.targets
    start = as_cheap(target.program)[0]
    search = Search(start, exports.inference, Costs(Machine()))
    (fits, *_) = search.run(search.start.peak // 2)
    search = Search(start, exports.inference, Costs(Machine()))
    now = iter([0.0, 0.0, *[math.inf] * 99])
    monkeypatch.setattr(search, "_onward", lambda *_: [fits])
    monkeypatch.setattr("memplan.chunking.search.time.monotonic", lambda: next(now))
    assert [each.peak for each in search.run(search.start.peak // 2)] == [fits.peak]


@pytest.mark.parametrize("build", [attention, skips, conv, mlp])
def test_finer_steps_lower_what_a_loop_exceeds(build: Any) -> None:
    """More chunks of the same region, which exceed the budget by no more."""
    model, x = build()
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    (target,) = exports.targets
    start = as_cheap(target.program)[0]
    search = Search(start, exports.inference, Costs(Machine()))
    at = search.start.profile.at
    for share in (60, 40, 25):
        budget = search.start.peak * share // 100
        for region in search._around(target.program, at, budget, ()):
            whole = replace(region, step=region.step * max(1, region.chunks // 2))
            for made in search._made_both_ways((whole,)):
                found = search._finer(made, budget)
                assert found.excess(budget) <= made.excess(budget)
                assert len(found.regions) == 1
                assert found.regions[0].slices == region.slices


def test_costs_decide_what_is_found(exports: Exports) -> None:
    """What operators need of their own counts with operands and results."""

    def much(program: Program, op: Op) -> int:
        return 1 << 30

    before = whole(exports)
    bench = Counted(before)
    search = descent(exports, bench, costs=Costs(Machine(), much))
    assert search.within(before // 2) == []
    assert search.nearest.peak > 1 << 30


@dataclass
class Dear(Counted):
    """Modules take twice the time unless they need less than `cheap` bytes."""

    cheap: int = 0

    def slowdown(self, module: Trial) -> float:
        return 1.0 if module.peak <= self.cheap else 3.0

    def settled(self, module: Trial, enough: float) -> bool:
        return self.slowdown(module) <= enough


def test_lower_budgets_are_tried_where_all_that_fits_is_slow(exports: Exports) -> None:
    before = whole(exports)
    limit = before // 2
    bench = Dear(before, cheap=int(0.6 * limit))
    module, fast = descent(exports, bench).fast_within(limit)
    assert fast and bench.peak(module) <= bench.cheap
    slow = replace(bench, cheap=0)
    module, fast = descent(exports, slow).fast_within(limit)
    assert not fast and slow.peak(module) <= limit


class Lower(Counted):
    """Only small modules need no more than estimated; these need nothing."""

    def peak(self, module: Trial) -> int:
        return 0 if 3 * module.peak < self.before else self.before


def test_lower_budgets_are_tried_where_none_fits(exports: Exports) -> None:
    before = whole(exports)
    bench = Lower(before)
    search = descent(exports, bench)
    module, fast = search.fast_within(int(0.6 * before))
    assert fast and bench.peak(module) == 0
    assert descent(exports, bench).fast_within(10)[0] is not None


def test_nothing_is_found_within_too_little(exports: Exports) -> None:
    search = descent(exports, Counted(whole(exports)))
    assert search.fast_within(10) == (None, False)
    assert search.nearest is not None


def test_the_bisection_of_few_bytes_ends(exports: Exports) -> None:
    """Nothing is fast enough, between peaks of a handful of bytes."""
    bench = Counted(20, more=20 / whole(exports), slower=9.0)
    module, fast = descent(exports, bench).least()
    assert bench.peak(module) < 20 and not fast
