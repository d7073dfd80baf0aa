"""Models whose reductions are added up slice by slice, and streamed weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.around import around  # noqa: E402
from memplan.chunking.candidates import Landscape  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.options import ChunkOptions, Effort  # noqa: E402
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.graph.check import relative_error, tolerance_of  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402
from tests.chunking import reducing  # noqa: E402

pytestmark = pytest.mark.torch
ANY = ChunkOptions(max_slowdown=None)  # no test depends on time
# Budgets in percent that slices of results alone do not keep.
ADDED = {
    "hidden": 25,
    "experts": 12,
    "messages": 8,
    "partition": 10,
    "statistics": 12,
}
# Those that they may keep.
STREAMED = {
    "pooled": 15,
    "evaluated": 10,
    "widened": 10,
    "widened, transposed": 10,
    "widened twice": 8,
    "int8": 10,
}


def totals(program: Program) -> list[str]:
    """The operators whose results a program's loops add up."""
    loops = [step for step in program.ops if isinstance(step, Loop)]
    found = [total.inner for loop in loops for total in loop.totals]
    inner = [name for loop in loops for name in totals(loop.body)]
    return [name.removesuffix("_i") for name in found] + inner


@pytest.mark.parametrize("name", [*ADDED, *STREAMED])
def test_a_budget_is_kept(name: str) -> None:
    model, inputs = reducing.models()[name]
    share = {**ADDED, **STREAMED}[name]
    small = memplan.chunk(model.eval(), inputs, f"{share}%", options=ANY)
    assert small.memplan.status == "chunked"
    assert not small.memplan.internal_errors
    assert name in STREAMED or totals(small.chunks[""].program)
    peak = activation_peak(lambda: small(*inputs))
    assert peak <= small.memplan.budget_bytes
    assert peak <= share / 100 * activation_peak(lambda: model(*inputs))
    with torch.no_grad():
        expected, found = model(*inputs), small(*inputs)
    assert relative_error(expected, found) <= tolerance_of(expected)


def test_half_precision_is_added_in_single() -> None:
    model, (x,) = reducing.models()["hidden"]
    model, x = model.eval().bfloat16(), x.bfloat16()
    small = memplan.chunk(model, x, "25%", options=ANY)
    assert totals(small.chunks[""].program) == ["linear_1"]
    assert "dtype=torch.float32" in small.source()
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= tolerance_of(x)


def test_a_plan_is_used_again(tmp_path: Path) -> None:
    model, inputs = reducing.models()["hidden"]
    small = memplan.chunk(model.eval(), inputs, "25%", options=ANY)
    path = tmp_path / "plan.json"
    memplan.write_chunk_plan(small.memplan, path)
    again = memplan.chunk(model, inputs, plan=path, options=ANY)
    assert again.source() == small.source()
    (part,) = small.memplan.parts
    (region,) = part.regions
    wrong = {**region.slices, "linear_1": Slice(0, total=True)}
    region = replace(region, slices=wrong)
    plan = replace(small.memplan, parts=(replace(part, regions=(region,)),))
    with pytest.raises(InputError, match="cannot be sliced along 0"):
        memplan.chunk(model, inputs, plan=plan, options=ANY)


@pytest.mark.parametrize("name", ["pooled", "messages", "statistics"])
def test_fewer_rows(name: str) -> None:
    model, inputs = reducing.models()[name]
    options = ChunkOptions(max_slowdown=None, other_sizes=True)
    small = memplan.chunk(model.eval(), inputs, "25%", options=options)
    *rest, last = inputs
    dim = 0 if name == "statistics" else 1
    for size in (last.shape[dim] * 9 // 10, 5):
        fewer = (*rest, last.narrow(dim, 0, size).clone())
        with torch.no_grad():
            expected, found = model(*fewer), small(*fewer)
        assert relative_error(expected, found) <= tolerance_of(expected)
        assert (
            activation_peak(lambda fewer=fewer: small(*fewer))
            <= small.memplan.budget_bytes
        )


def programs(model: Any, *inputs: Any) -> tuple[Program, Inference]:
    inference = Inference()
    return lower(export(model.eval(), inputs, {}), inference), inference


def ran(model: Any, program: Program, *inputs: Any) -> Any:
    forward = compiled(source(program, "totals"), "totals")
    with torch.no_grad():
        return forward(list(inputs), dict(model.named_parameters()))


FEATURES = {"linear": Slice(2), "gelu": Slice(2), "linear_1": Slice(2, total=True)}


def test_a_total_in_a_loop() -> None:
    """Rows outside, hidden features inside; neither divides its dimension."""
    model, x = reducing.Hidden(), torch.randn(2, 103, 32)
    program, inference = programs(model, x)
    rows = {name: Slice(1) for name in ("linear", "gelu", "linear_1", "add")}
    inner = {f"{name}_i": piece for name, piece in FEATURES.items()}
    features = Region(inner, 8192, 1000)
    looped = chunked(program, Region(rows, 103, 20, inner=(features,)), inference)
    assert totals(looped) == ["linear_1_i"]
    found = ran(model, looped, x)
    with torch.no_grad():
        assert relative_error([model(x)], list(found)) <= 1e-5
    assert activation_peak(lambda: ran(model, looped, x)) <= profile(looped).peak


class Biased(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 256), torch.nn.Linear(256, 32)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def test_a_total_whose_memory_another_loop_takes() -> None:
    """The loop that takes it is there before what it takes becomes a total's view."""
    model, x = Biased(), torch.randn(2, 103, 32)
    program, inference = programs(model, x)
    looped = chunked(program, Region({"add": Slice(1)}, 103, 20), inference)
    (output,) = looped.ops[-1].outputs
    assert output.into == "linear_1"
    looped = chunked(looped, Region(FEATURES, 256, 100), inference)
    assert totals(looped) == ["linear_1"]
    assert looped.roots["add"] == looped.roots["linear_1"] == "linear_1_total"
    found = ran(model, looped, x)
    with torch.no_grad():
        assert relative_error([model(x)], list(found)) <= 1e-5
    assert activation_peak(lambda: ran(model, looped, x)) <= profile(looped).peak


def test_a_total_of_totals() -> None:
    """A loop within the loop adds to what the outer one adds to."""
    model, x = reducing.Hidden(), torch.randn(5, 32)
    program, inference = programs(model, x)
    outer = {**FEATURES, "linear": Slice(1), "gelu": Slice(1)}
    outer["linear_1"] = Slice(1, total=True)
    inner = Region({"linear_1_i": Slice(1)}, 32, 7)
    looped = chunked(program, Region(outer, 8192, 1000, inner=(inner,)), inference)
    found = ran(model, looped, x)
    with torch.no_grad():
        assert relative_error([model(x)], list(found)) <= 1e-5
    again = Region({"linear_1_i": Slice(1, total=True)}, 1000, 7)
    with pytest.raises(NotLoopableError, match="varies in size along 1"):
        chunked(program, Region(outer, 8192, 1000, inner=(again,)), inference)


def test_a_total_is_known_after_its_loop_only() -> None:
    model, x = reducing.Hidden(), torch.randn(1, 16, 32)
    program, inference = programs(model, x)
    with pytest.raises(NotLoopableError, match="linear_1 is known only after the loop"):
        chunked(program, Region({**FEATURES, "add": Slice(2)}, 8192, 512), inference)


class Onto(torch.nn.Module):
    """Adds rows to the input itself, to what dies, or to what is needed later."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Any, rows: Any, at: Any) -> Any:
        target = x if self.way == "input" else x * 2
        made = target.index_add(0, at, rows.sin().exp())
        return (made, target) if self.way == "later" else made


@pytest.mark.parametrize("way", ["input", "dies", "later"])
def test_only_what_dies_is_written_over(way: str) -> None:
    x, rows = torch.randn(40, 8), torch.randn(1001, 8)
    at = torch.randint(0, 40, (1001,))
    model = Onto(way)
    program, inference = programs(model, x, rows, at)
    names = {"sin": Slice(0), "exp": Slice(0), "index_add": Slice(0, total=True)}
    looped = chunked(program, Region(names, 1001, 100), inference)
    (loop,) = (step for step in looped.ops if isinstance(step, Loop))
    assert [total.into for total in loop.totals] == ["mul" if way == "dies" else None]
    before = x.clone()
    found = list(ran(model, looped, x, rows, at))
    assert torch.equal(x, before)
    assert (
        relative_error(
            [model(x, rows, at)], found if way != "later" else [tuple(found)]
        )
        == 0
    )


def test_a_compiled_model_adds_up_in_its_arena() -> None:
    model, inputs = reducing.models()["hidden"]
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=True)
    module = memplan.compile(model.eval(), inputs, budget="30%", options=options)
    plan = module.memplan
    assert plan.loops == 1
    assert plan.bytes_after <= 0.3 * plan.bytes_before
    with torch.no_grad():
        assert relative_error(model(*inputs), module(*inputs)) <= 1e-5


def test_slices_go_before_totals() -> None:
    """Where slices of the results fit, one region adds up, which may be faster."""
    counts = []
    for rows, fair in ((400, False), (400, True), (2, False)):
        program, _ = programs(reducing.Hidden(), torch.randn(1, rows, 32))
        land = Landscape(program, Counter())
        at, budget = land.profile.at, land.profile.peak // 4
        found = around(land, at, budget, Effort(), fair)
        counts.append(sum(region.adds_up for region in found))
    assert counts[0] == 1
    assert min(counts[1:]) > 1
