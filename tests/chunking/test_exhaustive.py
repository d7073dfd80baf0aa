"""The search against one that tries everything, on programs of a few operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.descent import Descent  # noqa: E402
from memplan.chunking.options import Effort  # noqa: E402
from memplan.chunking.timing import Costs, Machine  # noqa: E402
from memplan.chunking.trial import Trial  # noqa: E402
from memplan.graph.call import Signature  # noqa: E402
from memplan.graph.capture import Exports, Target, export_parts  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile, results_bytes  # noqa: E402
from memplan.graph.program import Program  # noqa: E402
from tests.chunking.exhaustive import Exhaustive, TooManyError  # noqa: E402
from tests.chunking.random_programs import grown  # noqa: E402
from tests.chunking.test_descent import Counted  # noqa: E402
from tests.chunking.test_windows import Of  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional
# By default it builds fewer of the regions that it weighs, as models have hundreds.
THOROUGH = Effort(width=8, built=64, seconds=math.inf)
BUDGETS = 8  # that are tried, from the floor to what the program needs


def descent(program: Program, inference: Inference, effort: Effort) -> Any:
    """The search of a program, whose trials need what is estimated."""
    whole: Any = None
    target = Target("", whole, whole, program, whole, whole)
    bench = Counted(profile(program).peak)
    options = memplan.ChunkOptions(effort=effort, max_slowdown=None)
    exports = Exports([target], {}, inference)
    return Descent(exports, bench, Costs(Machine()), 1.0, options)


def reached(program: Program, inference: Inference, effort: Effort) -> Trial:
    """The trial with the lowest peak that the search finds."""
    found: Trial | None = descent(program, inference, effort).least()[0]
    return Trial((), program) if found is None else found


def lowest(program: Program, inference: Inference, effort: Effort) -> int:
    return reached(program, inference, effort).peak


def tiny(seeds: range, operators: int, inference: Inference) -> Iterator[Program]:
    """Random programs that need more than their results."""
    for seed in seeds:
        program = grown(seed, inference, operators).program
        live = profile(program).peak
        if len(program.ops) <= 7 and live > results_bytes(program):
            yield program


@pytest.mark.parametrize(
    ("seeds", "operators", "programs", "most"),
    [
        (range(16, 24), 2, 3, 500),
        pytest.param(range(200), 2, 90, 1500, marks=pytest.mark.soak),
        pytest.param(range(60), 3, 30, 1500, marks=pytest.mark.soak),
    ],
)
def test_the_search_reaches_the_floor(
    seeds: range, operators: int, programs: int, most: int
) -> None:
    """Or goes below, as it may run what is between a loop's operators before them or
    behind, and add up reductions in loops, which the reference does not."""
    inference = Inference()
    found, floors, before = [], [], []
    for program in tiny(seeds, operators, inference):
        try:
            floors.append(Exhaustive(inference, most).floor(program))
        except TooManyError:
            continue
        before.append(profile(program).peak)
        found.append(reached(program, inference, THOROUGH))
    assert len(found) >= programs
    assert all(one.peak <= other for one, other in zip(found, floors, strict=True))
    equal = [
        one.peak == other or any(region.adds_up for region in one.regions)
        for one, other in zip(found, floors, strict=True)
    ]
    assert sum(equal) >= 0.9 * len(equal)
    lower = [one.peak < other for one, other in zip(found, before, strict=True)]
    assert sum(lower) >= len(lower) / 3


def perceptron(x: Any) -> Any:
    return F.gelu(x @ torch.ones(6, 24)) @ torch.ones(24, 6)


def attention(x: Any) -> Any:
    return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def pair(x: Any) -> Any:
    return torch.relu(x.unsqueeze(1) * x.unsqueeze(2)).mean(2)


def gated(x: Any) -> Any:
    wide = x @ torch.ones(6, 12)
    return (F.silu(wide) * wide) @ torch.ones(12, 6)


def pooled(x: Any) -> Any:
    return F.max_pool2d(torch.tanh(x), 3, 1, 1).exp()


def first(x: Any) -> Any:
    return torch.tanh(x @ torch.ones(6, 24))[:, 0] * 2


@pytest.mark.parametrize(
    "function",
    [
        attention,
        pooled,
        pytest.param(first, marks=pytest.mark.soak),
        pytest.param(perceptron, marks=pytest.mark.soak),
        pytest.param(pair, marks=pytest.mark.soak),
        pytest.param(gated, marks=pytest.mark.soak),
    ],
)
def test_a_model_is_chunked_to_its_floor(function: Callable[[Any], Any]) -> None:
    """By the estimate that the reference shares: the plan's own counts what operators
    are seen to need as well. Loops that add up, which it does not have, go below."""
    model, x = Of(function).eval(), torch.randn(2, 5, 6)
    inputs = Signature().arranged(model, (x,), {})
    exports = export_parts(model, inputs, searchable)
    (target,) = exports.targets
    floor = Exhaustive(exports.inference, 20_000).floor(target.program)
    assert floor < profile(target.program).peak
    options = memplan.ChunkOptions(max_slowdown=None, effort=THOROUGH)
    small = memplan.chunk(model, x, "min", options=options)
    found = profile(small.chunks[""].program).peak
    (part,) = small.memplan.parts
    adding = any(region.adds_up for region in part.regions)
    assert found < floor if adding else found == floor


@pytest.mark.parametrize(
    ("seeds", "programs"),
    [(range(18, 29), 3), pytest.param(range(120), 40, marks=pytest.mark.soak)],
)
def test_tighter_budgets_have_lower_peaks(seeds: range, programs: int) -> None:
    """None from the least one on is refused, and what is nearest to a lower one is what
    needs least."""
    inference = Inference()
    tried = 0
    for program in tiny(seeds, 2, inference):
        before, least = profile(program).peak, lowest(program, inference, Effort())
        if least == before:
            continue
        tried += 1
        peaks = []
        for part in range(BUDGETS):
            budget = least + (before - 1 - least) * part // (BUDGETS - 1)
            found, _ = descent(program, inference, Effort()).found_within(budget)
            assert found is not None and found.peak <= budget
            peaks.append(found.peak)
        assert peaks == sorted(peaks)
        below = descent(program, inference, Effort())
        assert below.found_within(least - 1)[0] is None
        assert below.nearest.peak == least
    assert tried >= programs
