"""The verb: budgets are kept or refused, and results stay what they were."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking import workbench  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.options import BudgetError, ChunkOptions  # noqa: E402
from memplan.errors import InputError, UsageError  # noqa: E402
from memplan.graph.call import Signature  # noqa: E402
from memplan.graph.capture import export_parts  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from tests.chunking import models  # noqa: E402

ANY = ChunkOptions(max_slowdown=None)  # no test depends on time


def chunked(model: Any, inputs: Any, budget: str | int) -> Any:
    return memplan.chunk(model, inputs, budget, options=ANY)


def runs_unchanged(small: Any, said: str, *args: Any, **kwargs: Any) -> None:
    """What the model returns, with one warning."""
    with torch.no_grad():
        with pytest.warns(
            UserWarning, match=f"chunk: the model runs unchanged.*{said}"
        ):
            found = small(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert relative_error(small(*args, **kwargs), found) == 0
        assert relative_error(small.model(*args, **kwargs), found) == 0


def peak(model: Any, *args: Any, **kwargs: Any) -> int:
    return activation_peak(lambda: model(*args, **kwargs))


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (models.attention, "30%"),
        (lambda: models.attention(101), "30%"),  # a prime
        (lambda: models.attention(64, batch=3), "30%"),
        (models.mlp, "50%"),
        (models.conv, "70%"),
    ],
    ids=["attention", "prime", "batch", "mlp", "conv"],
)
def test_results_stay_and_the_budget_is_kept(
    make: Callable[[], tuple[Any, Any]], budget: str
) -> None:
    model, x = make()
    small = chunked(model, x, budget)
    plan = small.memplan
    other = torch.randn_like(x)
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
        assert relative_error(model(other), small(other)) <= 1e-5
    assert plan.status == "chunked"
    before = peak(model, x)
    assert plan.measured_bytes_before == before
    assert plan.budget_bytes == before * int(budget[:-1]) // 100
    assert peak(small, x) == plan.measured_bytes_after <= plan.budget_bytes
    assert plan.saved == 1 - plan.measured_bytes_after / before
    after = plan.measured_bytes_after
    assert abs(plan.peak_bytes_after - after) < 0.1 * after
    assert plan.left_alone == {}
    assert all(region["chunks"] > 1 for region in plan.regions)


def test_where_the_peak_is(attention: Any) -> None:
    plan = attention[2].memplan
    file = re.escape(models.__file__)
    for place in (plan.peak_before, plan.peak_after):
        assert place["operator"].startswith("aten.")
        assert re.fullmatch(rf"{file}:\d+", place["line"])
    live = plan.peak_before["live"]
    assert 0.9 * plan.peak_bytes_before <= sum(each["bytes"] for each in live)


def test_half_precision() -> None:
    model, x = models.attention()
    model, x = model.bfloat16(), x.bfloat16()
    small = chunked(model, x, "40%")
    assert small.memplan.status == "chunked"
    with torch.no_grad():
        assert small(x).dtype == torch.bfloat16
        assert relative_error(model(x), small(x)) < 0.05


def test_nests_and_keywords() -> None:
    model = models.Nested().eval()
    pair = {"first": torch.randn(1, 128, 16), "others": (torch.randn(1, 128, 16),)}
    given = {"pair": pair, "scale": 2.0}
    small = chunked(model, given, "30%")
    with torch.no_grad():
        expected, found = model(**given), small(**given)
    assert list(found) == ["both", "sum", "none"]
    assert found["none"] is None
    assert relative_error(expected, found) <= 1e-5
    other = {**given, "scale": 3.0}
    runs_unchanged(small, r"chunked for 2\.0, not 3\.0; chunk it with them", **other)
    given.pop("scale")
    runs_unchanged(small, "chunked with other arguments", **given)


def test_defaults_may_be_given_or_left_out(attention: Any) -> None:
    model, x, small = attention
    with torch.no_grad():
        expected = model(x)
        named = chunked(model, {"mask": None, "x": x}, "30%")
        for each in (small, named):
            for found in (each(x), each(x, None), each(mask=None, x=x)):
                assert relative_error(expected, found) <= 1e-5
    mask = torch.ones(128, 128, dtype=torch.bool).triu(1)
    runs_unchanged(small, "chunked with other arguments", x, mask)
    for wrong in ((x, None, None), ()):
        with pytest.raises(TypeError, match="argument"):  # as the model does
            small(*wrong)


def test_other_inputs_run_unchanged() -> None:
    model, x = models.attention()
    options = replace(ANY, other_sizes=False)
    small = memplan.chunk(model, x, "30%", options=options)
    said = r"1×128×16 float32 on cpu, not 1×64×16 float32 on cpu; call prepare\(\)"
    runs_unchanged(small, said, torch.randn(1, 64, 16))
    said = r"not 1×128×16 float64.*; chunk it with them"
    with (
        pytest.warns(UserWarning, match=said),
        pytest.raises(RuntimeError, match="datatype"),  # as the model does
    ):
        small(x.double())
    with pytest.raises(AttributeError, match="'str' object"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small("text")


def test_weights_changed_in_place_are_seen(attention: Any) -> None:
    x, small = attention[1], copy.deepcopy(attention[2])
    model = small.model
    with torch.no_grad():
        before = small(x)
        model.out.weight.mul_(2)
        model.norm.bias = torch.nn.Parameter(torch.ones(16))
        after = small(x)
        assert not torch.equal(before, after)
        assert relative_error(model(x), after) <= 1e-5


def test_it_fits_as_it_is() -> None:
    model, x = models.attention()
    for budget in ("100%", "1GiB", 1 << 30):
        small = chunked(model, x, budget)
        assert small.memplan.status == "unchanged"
        assert small.memplan.reason == "it fits the budget unchanged"
        with torch.no_grad():
            assert torch.equal(model(x), small(x))


def test_a_budget_below_the_floor_is_refused() -> None:
    model, x = models.attention()
    with pytest.raises(BudgetError, match="lowest found is") as raised:
        chunked(model, x, 20_000)
    error = raised.value
    assert error.exit_code == 4
    with torch.no_grad():
        assert ("results alone take" in str(error)) == (model(x).nbytes > 20_000)
    assert "models.py:" in error.line and error.line in str(error)
    nearest = error.closest
    assert peak(nearest, x) == error.floor > 20_000
    assert nearest.memplan.measured_bytes_after == error.floor
    with torch.no_grad():
        assert relative_error(model(x), nearest(x)) <= 1e-5


@pytest.mark.parametrize(
    ("make", "share"),
    [(models.mlp, 0.5), (models.normed, 0.9)],
)
def test_nothing_lower_is_to_be_found(make: Any, share: float) -> None:
    model, x = make()
    small = chunked(model, x, "min")
    least = peak(small, x)
    assert least <= small.memplan.budget_bytes < peak(model, x) // 2
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
    with pytest.raises(BudgetError) as raised:
        chunked(model, x, int(share * least))
    assert raised.value.floor >= 0.95 * least


def test_as_little_as_can_be_in_time() -> None:
    model, x = models.attention()
    options = ChunkOptions(max_slowdown=1e-9)
    with pytest.raises(BudgetError, match=r"times as long, above 0\.00") as raised:
        memplan.chunk(model, x, "min", options=options)
    assert peak(raised.value.closest, x) == raised.value.floor < peak(model, x)
    options = ChunkOptions(max_slowdown=None, time_limit=1e-9)
    assert memplan.chunk(model, x, "min", options=options).memplan.status == "unchanged"


def test_a_time_that_is_undecided_is_accepted_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ratios = [1.0, 1.3, 1.3, 1.05, 1.2]
    monkeypatch.setattr(workbench, "in_pairs", lambda *_: ratios)
    model, x = models.attention()
    plan = memplan.chunk(model, x, "50%").memplan
    assert (plan.slowdown_low, plan.slowdown, plan.slowdown_high) == (1.0, 1.2, 1.3)
    said = "the time is undecided: 1.00 to 1.30 times the original"
    assert plan.reason == f"{said}; the limit is 1.10"

    ratios[:] = [1.15, 1.3, 1.3, 1.2, 1.2]
    with pytest.raises(BudgetError, match=r"takes 1\.20 times as long, above 1\.10"):
        memplan.chunk(model, x, "50%")


@pytest.mark.parametrize(
    "first", [[1.0, 1.3, 1.3, 1.05, 1.2], [0.95, 0.97, 0.96, 0.98, 1.0]]
)
def test_a_time_near_the_limit_is_measured_a_second_time(
    monkeypatch: pytest.MonkeyPatch, first: list[float]
) -> None:
    """One of many modules may be found fast by chance: the second time counts."""
    found = {workbench.LATE: first}
    monkeypatch.setattr(workbench, "in_pairs", lambda *given: found[given[-1]])
    model, x = models.attention()
    found[workbench.THOROUGH] = [1.0, 1.02, 1.02, 1.3, 1.0]
    plan = memplan.chunk(model, x, "50%").memplan
    assert (plan.slowdown, plan.reason) == (1.02, "")
    found[workbench.THOROUGH] = [1.2] * 20
    with pytest.raises(BudgetError, match=r"takes 1\.20 times as long, above 1\.10"):
        memplan.chunk(model, x, "50%")


def test_a_time_far_below_the_limit_is_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {workbench.LATE: [0.7, 0.8, 0.9, 0.7, 0.8]}
    monkeypatch.setattr(workbench, "in_pairs", lambda *given: found[given[-1]])
    model, x = models.attention()
    assert memplan.chunk(model, x, "50%").memplan.slowdown == 0.8


@pytest.mark.parametrize(
    "name", ["attention", "mlp", pytest.param("skips", marks=pytest.mark.soak)]
)
def test_a_refusal_has_the_floor_that_min_finds(name: str) -> None:
    torch.manual_seed(0)
    model, x = getattr(models, name)()
    least = chunked(model, x, "min").memplan.measured_bytes_after
    with pytest.raises(BudgetError) as raised:
        chunked(model, x, 1)
    assert raised.value.floor == least == peak(raised.value.closest, x)
    assert raised.value.closest.memplan.measured_bytes_after == least


class Halved(nn.Module):
    """Two convolutions of one value, whose windows begin and end differently."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 16, 3, padding=1)
        self.long = nn.Conv2d(16, 8, 3, stride=2, padding=1)
        self.short = nn.Conv2d(16, 8, 1, stride=2)

    def forward(self, x: Any) -> Any:
        wide = self.wide(x).relu()
        return self.long(wide).relu() + self.short(wide)


@pytest.mark.parametrize("size", [64, 65])
def test_a_value_in_two_windows(size: int) -> None:
    torch.manual_seed(0)
    model, x = Halved().eval(), torch.randn(1, 3, size, size)
    small = chunked(model, x, "40%")
    assert small.memplan.status == "chunked" and not small.memplan.internal_errors
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5


def test_submodules_where_the_model_cannot_be_exported() -> None:
    model, x = models.Branching().eval(), torch.randn(1, 128, 16)
    small = chunked(model, x, "40%")
    plan = small.memplan
    assert sorted(small.chunks) == ["first", "second"]
    assert "torch.export cannot take this model" in plan.left_alone[""]
    assert small.source() == ""
    for sign in (1, -1):
        with torch.no_grad():
            assert relative_error(model(sign * x), small(sign * x)) <= 1e-5
    assert peak(small, x) <= plan.budget_bytes
    assert "forward" not in vars(model.first)
    again = memplan.chunk(model, x, plan=plan, options=ANY)
    assert again.memplan.regions == plan.regions


def test_nothing_can_be_exported() -> None:
    model, x = models.Opaque().eval(), torch.randn(8)
    with pytest.raises(BudgetError, match=r"\(no part of it can be exported: torch"):
        chunked(model, x, "50%")
    plan = chunked(model, x, "min").memplan
    assert (plan.status, plan.reason) == ("unchanged", "no part of it can be exported")
    assert "torch.export cannot take this model" in plan.left_alone[""]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_take_no_hooks() -> None:
    mlp, x = models.mlp()
    model = models.Branching().eval()
    model.second = torch.jit.script(torch.nn.GELU())
    small = chunked(model, x, "60%")
    assert list(small.chunks) == ["first"]
    with pytest.raises(BudgetError, match="no part of it can be exported"):
        chunked(torch.jit.script(mlp), x, "50%")


def test_what_writes_to_its_buffers_is_left_alone() -> None:
    model, x = models.Counting().eval(), torch.randn(1, 128, 16)
    small = chunked(model, x, "40%")
    assert list(small.chunks) == ["attention"]
    assert "writes to its buffer 'calls'" in small.memplan.left_alone[""]
    before = int(model.calls)
    with torch.no_grad():
        small(x)
    assert int(model.calls) == before + 1
    with pytest.raises(BudgetError, match=r"be exported: .*its buffer 'calls'"):
        chunked(model, x, 1000)


def test_arguments_that_make_no_sense() -> None:
    model, x = models.attention()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "either a budget or a plan"),
        ({"budget": "20%", "plan": "p.json"}, "either a budget or a plan"),
        ({"budget": "0%"}, "above 0%"),
        ({"budget": "120%"}, "above 0%"),
        ({"budget": "much"}, "is not a size"),
        ({"budget": 0}, "more than 0 bytes"),
        ({"budget": 1.5}, "a budget must be like"),
    ]
    for arguments, said in wrong:
        with pytest.raises(UsageError, match=said):
            memplan.chunk(model, x, **arguments)
    with pytest.raises(UsageError, match=r"call model.eval\(\) for"):
        memplan.chunk(model.train(), x, "20%")
    with pytest.raises(UsageError, match=r"must be an nn\.Module, not int"):
        memplan.chunk(3, x, "20%")
    with pytest.raises(UsageError, match="not int"):
        memplan.chunk(model.eval(), 3, "20%")
    with pytest.raises(InputError, match="the model fails on these inputs: "):
        memplan.chunk(model, torch.randn(1, 5, 5), "20%")
    with pytest.raises(InputError, match=r"input 0 is on meta and norm\.weight on cpu"):
        memplan.chunk(model, x.to("meta"), "20%")


class Counting(nn.Module):
    """Only its parts can be exported; two of them hand on what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Identity(), nn.Identity()
        layers = nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)
        self.inside, self.calls = nn.Sequential(*layers), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.after(self.inside(self.before(x)))


def test_parts_without_operators_are_no_parts() -> None:
    model, x = Counting().eval(), torch.randn(3, 101, 16)
    exports = export_parts(model, Signature().arranged(model, (x,), {}), searchable)
    assert [each.path for each in exports.targets] == ["inside"]
    assert list(exports.left_alone) == [""]
    module = memplan.chunk(model, (x,), "40%", options=ANY)
    assert [each.path for each in module.memplan.parts] == ["inside"]


def test_a_signal_of_one_channel_is_enlarged() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv1d(1, 1, 3, padding=1), torch.nn.Upsample(scale_factor=2)
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 1, 256)
    small = memplan.chunk(model, x, "min", options=ANY)
    assert torch.allclose(small(x), model(x), atol=1e-6)
