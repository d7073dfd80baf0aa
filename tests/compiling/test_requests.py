"""What operators ask the allocator for: in the arena, each call anew."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.errors import MemplanError  # noqa: E402
from memplan.graph.arenas import ArenaPool  # noqa: E402
from memplan.graph.requests import HOST, TORCH, Service, watched  # noqa: E402
from memplan.recording.shim import install  # noqa: E402
from tests.compiling.modules import compiled, tape_of  # noqa: E402

pytestmark = pytest.mark.torch
PLAIN = memplan.CompileOptions(max_slowdown=1000.0, pack=False)
PACKED = memplan.CompileOptions(max_slowdown=1000.0, pack=True)


class Pictures(nn.Module):
    """Convolutions of all kinds, with norms and activations after them."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(16)
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.uniform_(norm.weight)
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm, nn.Hardswish())
        self.wide = nn.Conv2d(16, 16, 3, 2, padding=2, dilation=2, groups=4, bias=False)
        self.after = nn.BatchNorm2d(16, affine=False)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.up = nn.ConvTranspose2d(16, 8, 3, 2, padding=1, output_padding=1, groups=2)
        self.then = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU6(), nn.GroupNorm(2, 8))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        kept = self.first(x)
        doubled = kept * 2  # lives as long as its name
        shifted = doubled + 1
        x = self.after(self.wide(shifted)).relu()
        x = self.deep(x).sigmoid() + x
        x = self.then(self.up(x))
        x = torch.cat([x, kept], 1)[:, :8]
        return self.last(x.flatten(2).transpose(1, 2)), kept.mean()


def pictures() -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    return Pictures().eval(), torch.randn(2, 3, 32, 32)


def test_only_results_are_asked_for() -> None:
    model, x = pictures()
    module = compiled(model, x, options=PLAIN)
    plan = module.memplan
    assert (plan.requests_after, plan.beside) == (2, 2 * 1024 * 4 * 4 + 4)
    assert plan.error == 0
    assert plan.packed == 0
    assert plan.arena == plan.plan.lower_bound
    assert not memplan.verify(plan.plan)
    module(x)
    assert tape_of(module).missed == 0


def test_calls_beyond_the_limit_wait_for_a_tape() -> None:
    model, x = pictures()
    module = compiled(model, x, options=PLAIN)
    pool = module.runner.arenas = ArenaPool(limit=1)
    held: list[bool] = []

    def another() -> None:
        module(x)
        held.append(ended.is_set())

    ended = threading.Event()
    waits = threading.Thread(target=another)
    with pool.slab(1):
        waits.start()
        waits.join(0.2)  # long enough to take a tape, were there one
        ended.set()
    waits.join()
    assert held == [True]


def test_packed_convolutions_take_less(faster: None) -> None:
    layers = [nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 8, 64, 64)
    plan = compiled(model, x, options=PACKED).memplan
    # The wide value, which the activation overwrites, and the result beside it.
    assert plan.arena <= 4 * 32 * 64 * 64 + 4 * 8 * 64 * 64 + (1 << 17)
    assert plan.bytes_after < 0.8 * plan.bytes_before
    assert plan.requests_after == 1


def test_packed_convolutions_of_all_kinds(faster: None) -> None:
    model, x = pictures()
    module = compiled(model, x, options=PACKED)
    assert module.memplan.packed >= sum(
        each.weight.numel() * 4
        for each in model.modules()
        if isinstance(each, nn.Conv2d | nn.ConvTranspose2d)
    )
    for inputs in (x, torch.randn_like(x)):
        with torch.no_grad():
            for ours, theirs in zip(module(inputs), model(inputs), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-5)


def test_packed_weights_follow_the_models(faster: None) -> None:
    model, x = pictures()
    module = compiled(model, x, options=PACKED)
    with torch.no_grad():
        model.wide.weight.mul_(3)
        model.first[1].running_mean.add_(1)
        for ours, theirs in zip(module(x), model(x), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_weights_are_packed_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """By themselves: only if all that is kept takes no more than before, and it is not
    slower."""
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0] * len(runs))
    few = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).eval()
    many = nn.Sequential(nn.Conv2d(256, 256, 3), nn.ReLU()).eval()
    given = memplan.CompileOptions(max_slowdown=1000.0)
    found = memplan.compile(few, torch.randn(1, 4, 64, 64), options=given).memplan
    assert found.packed
    found = memplan.compile(many, torch.randn(1, 256, 8, 8), options=given).memplan
    assert not found.packed


def test_loops_over_convolutions_run_in_the_arena() -> None:
    layers = [nn.Conv2d(4, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1)]
    model, x = (
        nn.Sequential(*layers, nn.MaxPool2d(4)).eval(),
        torch.randn(1, 4, 128, 64),
    )
    module = compiled(model, x, budget="40%")
    assert module.memplan.loops
    assert module.memplan.requests_after == 1
    assert module.memplan.bytes_after <= 0.4 * module.memplan.bytes_before
    with torch.no_grad():
        assert torch.allclose(module(x), model(x), atol=1e-5)


def test_new_memory_that_is_filled_runs_the_model() -> None:
    model, x = pictures()
    module = compiled(model, x, options=PLAIN)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.warns(UserWarning, match="fill new memory"), torch.no_grad():
            assert torch.equal(module(x)[0], model(x)[0])
    finally:
        torch.use_deterministic_algorithms(False)


def bytes_(count: int) -> Any:
    return torch.empty(count, dtype=torch.uint8)


@pytest.fixture
def arena() -> Any:
    install("testing")
    return bytes_(4096)


def test_what_an_operator_asks_for() -> None:
    install("testing")

    def run() -> Any:
        first = bytes_(100)
        second = bytes_(200)
        del first
        third = bytes_(300)
        return second, third.view(3, 100)

    result, asked = watched(run)
    rows = [(each.bytes, each.born, each.died, each.result) for each in asked.requests]
    assert rows == [(100, 0, 2, None), (200, 1, None, 0), (300, 3, None, 1)]
    assert (asked.events, asked.scratch) == (4, 0)  # the first goes before the third
    assert len(result) == 2


def test_scratch_is_what_lives_beside_the_results() -> None:
    install("testing")

    def run() -> Any:
        first = bytes_(100)
        second = bytes_(50)
        del first
        third = bytes_(70)
        return third if second.numel() else None

    _, asked = watched(run)
    assert asked.scratch == 100 + 50 - 70


def test_requests_are_served_in_their_step(arena: Any) -> None:
    steps = {"a": [(64, 128, False), (32, -1, False)], "b": [(64, 256, True)]}
    service = Service(arena, steps)
    service.begin()
    try:
        before = bytes_(64)
        bytes_(service.marks["a"])
        served, own, beyond = bytes_(64), bytes_(32), bytes_(64)
        bytes_(service.marks["b"])
        scratch = bytes_(64).data_ptr()
        bytes_(service.marks["b"])
        other = bytes_(65)
        bytes_(service.marks[TORCH])
        last = bytes_(64)
    finally:
        service.end()
    base = arena.data_ptr()
    assert (served.data_ptr(), scratch) == (base + 128, base + 256)
    for each in (before, own, beyond, other, last):
        assert not base <= each.data_ptr() < base + 4096
    assert service.missed == 2  # what came beyond the first step, and the other size
    assert not base <= bytes_(64).data_ptr() < base + 4096  # the call is over


def test_memory_that_a_step_keeps_is_an_error(arena: Any) -> None:
    service = Service(arena, {"a": [(64, 0, True)], "b": [(64, 64, False)]})
    service.begin()
    bytes_(service.marks["a"])
    kept = bytes_(64)
    bytes_(service.marks["b"])
    with pytest.raises(MemplanError, match="kept memory"):
        service.end()
    del kept


def test_requests_in_the_memory_of_a_result(arena: Any) -> None:
    steps = {"a": [(64, 4096, True), (64, 4096 + 128, False)], "b": [(64, 0, False)]}
    service = Service(arena, steps)
    service.begin()
    bytes_(service.marks["a"])
    early = bytes_(64)  # there is no result yet
    bytes_(service.marks[HOST])
    result = bytes_(500)
    bytes_(service.marks["a"])
    scratch = bytes_(64)
    kept = bytes_(64)
    base = result.data_ptr()
    assert (scratch.data_ptr(), kept.data_ptr()) == (base, base + 128)
    del scratch
    bytes_(service.marks["b"])
    assert bytes_(64).data_ptr() == arena.data_ptr()
    with pytest.raises(MemplanError, match="kept memory"):
        service.end()
    del kept  # belongs to the result: it is not torch's to free
    result.fill_(1)
    del early, result


def test_blocks_may_outlive_the_service(arena: Any) -> None:
    service = Service(arena, {"a": [(64, 0, False)]})
    service.begin()
    bytes_(service.marks["a"])
    block = bytes_(64).fill_(7)
    service.end()
    place = arena.data_ptr()
    del service, arena
    others = [torch.zeros(4096, dtype=torch.uint8) for _ in range(50)]
    assert block.data_ptr() == place
    assert bool((block == 7).all())
    del block, others


def test_other_threads_are_not_served(arena: Any) -> None:
    service = Service(arena, {"a": [(64, 0, False)]})
    service.begin()
    found: list[Any] = []
    try:
        bytes_(service.marks["a"])
        thread = threading.Thread(target=lambda: found.append(bytes_(64)))
        thread.start()
        thread.join()
        mine = bytes_(64)
    finally:
        service.end()
    assert mine.data_ptr() == arena.data_ptr() != found[0].data_ptr()
    del mine


class Twice(nn.Module):
    """Equal operators, one of them after the other's memory was planned for more."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        first = torch.sort(y, -1).values.sum(-1, keepdim=True)
        left = x + first  # lives as long as its name
        right = x - first
        wide = left.tanh() * right.tanh()
        return torch.sort(y, -1).values * wide, torch.tril_indices(3, 3)


def test_equal_operators_have_memory_of_their_own() -> None:
    model, x = Twice().eval(), torch.randn(64, 512)
    module = compiled(model, x, options=PLAIN)
    with torch.no_grad():
        for _ in range(3):
            result, indices = module(x)
            assert torch.equal(result, model(x)[0])
            assert torch.equal(indices, torch.tril_indices(3, 3))
            indices.zero_()


def test_what_is_no_number_stays_so_in_packed_convolutions() -> None:
    layers = [nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU6()]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 4, 64, 64)
    module = compiled(model, x, options=PACKED)
    x[0, 0, 20, 20] = float("nan")
    with torch.no_grad():
        assert torch.equal(module(x).isnan(), model(x).isnan())


def test_modes_that_see_operators_run_the_model() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = pictures()
    module = compiled(model, x, options=PLAIN)
    counter = FlopCounterMode(display=False)  # a mode, and hooks of all modules
    with counter as mine, pytest.warns(match="all modules have hooks"):
        module(x)
    with FlopCounterMode(display=False) as theirs:
        model(x)
    assert mine.get_total_flops() == theirs.get_total_flops()
    with pytest.warns(match="functions are transformed"):
        torch.func.vmap(module)(x[None])


def test_compiled_in_inference_mode() -> None:
    model, x = pictures()
    with torch.inference_mode():
        module = compiled(model, x, options=PLAIN)
    with torch.no_grad():
        assert torch.equal(module(x)[0], model(x)[0])
        model.last.weight.mul_(2)
        assert torch.equal(module(x)[0], model(x)[0])
    with torch.inference_mode():
        model.last.weight.mul_(2)
        assert torch.equal(module(x)[0], model(x)[0])
    with torch.no_grad():
        assert torch.equal(module(x)[0], model(x)[0])
    assert module.runner is not None
