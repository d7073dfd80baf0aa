"""Values that are computed again for their last users, instead of kept."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.curve import live_within  # noqa: E402
from memplan.chunking.descent import Tries  # noqa: E402
from memplan.chunking.options import Effort  # noqa: E402
from memplan.chunking.plan import Part, fingerprint  # noqa: E402
from memplan.chunking.recompute import (  # noqa: E402
    Base,
    again,
    as_cheap,
    bases,
    recomputable,
)
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.chunking.search import Search  # noqa: E402
from memplan.chunking.timing import Costs  # noqa: E402
from memplan.chunking.trial import Trial  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.graph.call import Signature  # noqa: E402
from memplan.graph.capture import export_parts  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from tests.chunking.models import skips  # noqa: E402

pytestmark = pytest.mark.torch
ANY = memplan.ChunkOptions(max_slowdown=None)


def exports_of(model: Any, x: Any) -> Any:
    return export_parts(model, Signature().arranged(model, (x,), {}), searchable)


def program_of(model: Any, x: Any) -> Any:
    return exports_of(model, x).targets[0].program


def searched(exports: Any, base: Base) -> Search:
    """A search without a clock that has come to its end."""
    endless = Effort(seconds=math.inf)
    search = Search(base, exports.inference, Costs(), endless)
    search.run(1)
    return search


def with_trial(model: Any, x: Any, trial: Trial) -> Any:
    """The plan that has a trial's decisions."""
    plan = memplan.chunk(model, x, "100%").memplan
    part = Part("", fingerprint(program_of(model, x)), trial.regions, trial.again)
    return replace(plan, status="chunked", parts=(part,))


def test_what_is_live_in_a_loop_has_the_name_that_it_has_outside() -> None:
    """By which values are chosen that are computed again."""
    model, x = skips("nearest")
    exports = exports_of(model, torch.cat([x, x]))
    program = exports.targets[0].program
    slices = {op.name: Slice(0) for op in program.ops}
    looped = chunked(program, Region(slices, 2 * len(x), 1), exports.inference)
    live = profile(looped)
    inside = dict(live_within(looped, live))
    given = {ref.name for ref in program.outputs}
    assert inside.keys() - given <= {op.name for op in program.ops}
    assert len(inside.keys() - given) > 1
    assert sum(inside.values()) <= live.peak


@pytest.mark.parametrize(
    "up", ["nearest", "bilinear", "bilinear-corners", "transposed"]
)
def test_a_skip_is_not_kept(up: str, tmp_path: Path) -> None:
    model, x = skips(up)
    exports = exports_of(model, x)
    found = list(bases(as_cheap(exports.targets[0].program)))
    trial = searched(exports, found[-1]).best
    assert trial.again
    assert trial.peak < 0.75 * profile(found[0].program).peak

    path = tmp_path / "plan.json"
    memplan.write_chunk_plan(with_trial(model, x, trial), path)
    small = memplan.chunk(model, x, plan=path, options=ANY)
    assert small.memplan.parts[0].again == trial.again
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
    measured = activation_peak(lambda: small(x))
    assert measured == small.memplan.measured_bytes_after
    assert measured < 0.8 * small.memplan.measured_bytes_before

    other = x[:, :, :48, :40].clone()
    small.memplan = replace(small.memplan, budget_bytes=measured)
    small.prepare(other)
    with torch.no_grad():
        assert relative_error(model(other), small(other)) <= 1e-5
    assert activation_peak(lambda: small(other)) <= measured


def test_one_value_after_the_other() -> None:
    program = program_of(*skips())
    found = list(bases(as_cheap(program)))
    assert found[0].again == ()
    for before, after in pairwise(found):
        assert after.again[:-1] == before.again
        assert before.share < after.share
        names = [op.name for op in after.program.ops]
        assert len(set(names)) == len(names) > len(before.program.ops)
        assert again(program, after.again).ops[-1].operands() == (
            after.program.ops[-1].operands()
        )
    # Every value that can be, all together.
    names = []
    while len(names) < 6 and (rest := recomputable(again(program, names))):
        names.append(rest[len(names) % len(rest)].name)
    assert profile(again(program, names)).peak > 0


def test_what_cannot_be_computed_again() -> None:
    model, x = skips()
    with pytest.raises(NotLoopableError, match="nothing cannot be computed again"):
        again(program_of(model, x), ["nothing"])
    exports = exports_of(model, x)
    *_, base = bases(as_cheap(exports.targets[0].program))
    trial = searched(exports, base).best
    trial.again = ("nothing",)
    plan = with_trial(model, x, trial)
    with pytest.raises(InputError, match="nothing cannot be computed again"):
        memplan.chunk(model, x, plan=plan, options=ANY)


def test_a_chain_keeps_nothing_twice() -> None:
    """Without a value that waits, there is nothing to compute again."""
    chain = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))).eval()
    assert len(list(bases(as_cheap(program_of(chain, torch.randn(1, 4, 16, 16)))))) == 1


class Grown(nn.Module):
    """A small image, made by many layers and enlarged, of which the first use and the
    last are far apart."""

    def __init__(self) -> None:
        super().__init__()
        pairs = 3 * [(32, 128), (128, 32)]
        self.small = nn.Sequential(*(nn.Conv2d(*pair, 5, padding=2) for pair in pairs))
        self.large = nn.Conv2d(32, 32, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.Sigmoid())
        self.beside = nn.Conv2d(32, 16, 1)

    def forward(self, x: Any) -> Any:
        x = nn.functional.interpolate(self.small(x), scale_factor=4)
        x = self.large(x)
        return self.inner(x) + self.beside(x)


def test_the_small_value_that_a_large_one_is_made_of_is_kept() -> None:
    torch.manual_seed(0)
    model, x = Grown().eval(), torch.randn(1, 32, 16, 16)
    exports = exports_of(model, x)
    program = exports.targets[0].program
    (what,) = recomputable(program)
    assert [program.ops[i].key for i in what.ops] == [
        "aten.upsample_nearest2d",
        "aten.conv2d",
    ]
    small, large = 4 * 32 * 16 * 16, 4 * 32 * 64 * 64
    assert what.saves == large - small  # and not the six layers before
    *_, base = bases(as_cheap(program))
    assert base.again == (what.name,)

    def between(program: Any) -> int:
        """Bytes that are live when the activation runs."""
        (at,) = (i for i, op in enumerate(program.ops) if op.key == "aten.sigmoid")
        return profile(program).live[at]

    assert between(base.program) == between(program) - what.saves
    plan = with_trial(model, x, searched(exports, base).best)
    module = memplan.chunk(model, x, plan=plan, options=ANY)
    with torch.no_grad():
        assert relative_error(model(x), module(x)) <= 1e-5


class Windowed(nn.Module):
    """Three layers of attention to the last 32 positions, with one mask."""

    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[1])
        mask = (at[:, None] >= at) & (at[:, None] - at < 32)
        for _ in range(3):
            heads = x.unflatten(-1, (2, 32)).transpose(1, 2)
            there = nn.functional.scaled_dot_product_attention(
                heads, heads, heads, mask
            )
            x = x + there.transpose(1, 2).flatten(2).tanh().cumsum(1).tanh()
        return x


def test_a_mask_is_made_in_slices_for_each_user() -> None:
    model, x = Windowed().eval(), torch.randn(1, 1024, 64)
    exports = exports_of(model, x)
    (target,) = exports.targets
    tries = iter(Tries(target.program, Costs(), partial(searched, exports)))
    first = next(tries).search  # its best trial's peak has the whole mask
    second = next(tries).search
    mask = next(op.name for op in target.program.ops if "and" in op.key)
    assert second.base.again == (mask, f"{mask}_again")
    assert sum("and" in op.key for op in second.base.program.ops) == 3
    trial = second.best
    assert trial.peak < 0.7 * first.best.peak
    small = memplan.chunk(model, x, plan=with_trial(model, x, trial), options=ANY)
    assert small.memplan.parts[0].again == second.base.again
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
        assert activation_peak(lambda: small(x)) == small.memplan.measured_bytes_after


class Statistics(nn.Module):
    """A convolution whose normalisation needs all of each channel group's places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 64, 10, stride=5)
        self.norm = nn.GroupNorm(16, 64)
        self.last = nn.Conv1d(64, 32, 3, stride=4)

    def forward(self, x: Any) -> Any:
        return self.last(nn.functional.gelu(self.norm(self.conv(x))))


def test_a_convolution_is_run_for_its_statistics_and_again_for_their_use() -> None:
    torch.manual_seed(0)
    model, x = Statistics().eval(), torch.randn(2, 1, 20_000)
    small = memplan.chunk(model, x, "30%", options=ANY)
    assert small.memplan.parts[0].again == ("conv1d",)
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
        assert activation_peak(lambda: small(x)) == small.memplan.measured_bytes_after
