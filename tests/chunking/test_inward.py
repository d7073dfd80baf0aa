"""Loops that compute, in each iteration, what they would else be given whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import memplan  # noqa: E402
from memplan.chunking.inward import inward  # noqa: E402
from memplan.chunking.options import ChunkOptions, Effort  # noqa: E402
from memplan.chunking.region import (  # noqa: E402
    NotLoopableError,
    Region,
    chunked,
    loop_name,
)
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.errors import FormatError  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402
from tests.chunking.test_exhaustive import lowest  # noqa: E402
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch
ANY = ChunkOptions(max_slowdown=None)  # no test depends on time
W = torch.randn(8, 8) / 3


class Heads(nn.Module):
    """A norm and an attention of many heads, with what it is added to."""

    def __init__(self, width: int = 64, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.all = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        x = x * 2
        y = self.norm(x)
        parts = (each(y).unflatten(-1, (self.heads, -1)) for each in self.all)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + self.out(mixed.flatten(2))


def of(function: Callable[..., Any], over: dict[str, int], *shape: int) -> Any:
    """A program, the loop over all of a dimension of the named operators' results, two
    at a time, and the regions that take more into it."""
    program, inference = lowered(function, torch.randn(shape))
    slices = {op.name: Slice(over[op.key]) for op in program.ops if op.key in over}
    region = Region(slices, shape[-1], 2)
    made = chunked(program, region, inference)
    loop = next(each for each in made.ops if isinstance(each, Loop))
    return program, inference, region, list(inward(made, loop, 1))


def test_what_only_the_loop_reads_is_computed_in_it() -> None:
    program, inference, region, found = of(
        lambda x: ((x * 2).tanh() @ W).exp(), {"aten.matmul": 1, "aten.exp": 1}, 16, 8
    )
    (whole,) = found
    assert whole == {"mul", "tanh"}
    made = chunked(program, replace(region, whole=whole), inference)
    (loop,) = (each for each in made.ops if isinstance(each, Loop))
    assert [op.name for op in loop.body.ops][:2] == ["mul_i", "tanh_i"]
    assert loop.name == loop_name(region) and "mul" not in loop.wholes()


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: (x.exp() @ W).mm(W).sin(), id="made by a product"),
        pytest.param(
            lambda x: (((y := x.tanh()) @ W).sin(), y.sum()), id="read elsewhere"
        ),
        pytest.param(lambda x: ((y := x.tanh()) @ W).sin().add(y), id="read in slices"),
        pytest.param(lambda x: ((y := x.tanh()), (y @ W).sin()), id="given"),
        pytest.param(
            lambda x: (x @ W).tanh() @ W,
            id="of what would be gone",
        ),
        pytest.param(lambda x: (x @ W).sin(), id="there anyway"),
    ],
)
def test_what_cannot_be_taken_in(function: Callable[..., Any]) -> None:
    program, inference = lowered(function, torch.randn(16, 8))
    sliced = {}
    for op in reversed(program.ops):
        if op.key != "aten.sum":
            sliced[op.name] = Slice(1)
        if op.key in {"aten.mm", "aten.matmul"}:
            break
    region = Region(dict(reversed(sliced.items())), 8, 2)
    made = chunked(program, region, inference)
    loop = next(each for each in made.ops if isinstance(each, Loop))
    assert not list(inward(made, loop, 1))


def test_a_small_value_stays_outside() -> None:
    program, inference = lowered(lambda x: (x.tanh() @ W).exp(), torch.randn(16, 8))
    first, mm, exp = (op.name for op in program.ops)
    region = Region({mm: Slice(1), exp: Slice(1)}, 8, 2)
    made = chunked(program, region, inference)
    loop = next(each for each in made.ops if isinstance(each, Loop))
    assert list(inward(made, loop, 16 * 8 * 4)) == [frozenset({first})]
    assert not list(inward(made, loop, 16 * 8 * 4 + 1))


def test_a_member_that_is_needed_outside_makes_no_loop() -> None:
    program, inference = lowered(
        lambda x: ((y := x.tanh()), (y @ W).sin()), torch.randn(16, 8)
    )
    first, mm, sin = (op.name for op in program.ops)
    region = Region({mm: Slice(1), sin: Slice(1)}, 8, 2, whole=frozenset({first}))
    with pytest.raises(NotLoopableError, match="stays inside is needed outside"):
        chunked(program, region, inference)


def without(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("memplan.chunking.search.inward", lambda *_: ())


def test_the_floor_of_an_attention_of_heads_is_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def floor() -> tuple[Program, Inference]:
        return lowered(Heads().eval(), torch.randn(1, 96, 64))

    own = lowest(*floor(), Effort())
    without(monkeypatch)
    assert own < lowest(*floor(), Effort())
    state = 96 * 64 * 4  # beside the state and the heads' results, those of a head
    assert own <= 2.1 * state < profile(floor()[0]).peak


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(1, 96, 64)
    found = memplan.chunk(model, x, "min", options=ANY)
    return model, x, found


def test_its_module_computes_the_same(small: Any) -> None:
    model, x, found = small
    assert any(region.whole for part in found.memplan.parts for region in part.regions)
    with torch.no_grad():
        assert relative_error(model(x), found(x)) <= 1e-6


def test_its_plan_is_read_again(small: Any, tmp_path: Path) -> None:
    model, x, found = small
    memplan.write_chunk_plan(found.memplan, tmp_path / "p.json")
    read = memplan.read_chunk_plan(tmp_path / "p.json")
    pairs = zip(read.parts, found.memplan.parts, strict=True)
    for one, other in pairs:
        assert [r.whole for r in one.regions] == [r.whole for r in other.regions]
    again = memplan.chunk(model, x, plan=tmp_path / "p.json", options=ANY)
    assert again.memplan.peak_bytes_after == found.memplan.peak_bytes_after
    text = (tmp_path / "p.json").read_text().replace('"whole": [', '"whole": [3,')
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(FormatError, match=r"whole\[0\]"):
        memplan.read_chunk_plan(tmp_path / "q.json")


def test_it_serves_other_sizes(small: Any) -> None:
    model, x, found = small
    for tokens in (80, 33):
        with torch.no_grad():
            assert relative_error(model(x[:, :tokens]), found(x[:, :tokens])) <= 1e-6
