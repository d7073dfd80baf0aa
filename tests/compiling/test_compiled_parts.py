"""Models that cannot be exported: their submodules run in one arena."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling.parts import CompiledParts  # noqa: E402
from memplan.errors import NoPlanError, UsageError  # noqa: E402
from tests.compiling.modules import SLOW  # noqa: E402

pytestmark = pytest.mark.torch


class Detector(nn.Module):
    """What it returns depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        wide = [nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16), nn.Sigmoid()]
        self.body = nn.Sequential(*wide)
        self.head = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 4))
        self.seen: list[int] = []

    def forward(self, x: Any) -> Any:
        scores = self.head(self.body(x))
        chosen = scores[:, 0] > 0
        self.seen.append(int(chosen.sum()))
        if chosen.sum() > 2:
            return {"chosen": scores[chosen]}
        return {"all": scores, "mask": chosen}


@pytest.fixture(scope="module")
def detector() -> tuple[Detector, Any]:
    torch.manual_seed(0)
    return Detector().eval(), torch.randn(64, 16)


@pytest.fixture(scope="module")
def module(detector: tuple[Detector, Any]) -> Any:
    found = memplan.compile(*detector, options=SLOW)
    assert isinstance(found, CompiledParts), found.memplan.reason
    return found


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_parts_run_in_one_arena(detector: Any, module: Any) -> None:
    model, x = detector
    plan = module.memplan
    assert plan.status == "compiled"
    assert "changes its own attributes" in plan.reason
    assert list(plan.parts) == list(module.parts) == ["body", "head"]
    assert plan.arena == max(part.arena for part in plan.parts.values())
    assert plan.bytes_after == plan.arena + plan.beside < plan.bytes_before
    assert plan.plan is None
    assert all(not memplan.verify(part.plan) for part in plan.parts.values())
    pools = {id(part.runner.arenas) for part in module.parts.values()}
    assert len(pools) == 1
    with torch.no_grad():
        for each in (x, -x, torch.randn(64, 16), torch.zeros(64, 16), x[:9]):
            same(module(each), model(each))


def test_the_model_itself_runs_around_its_parts(detector: Any, module: Any) -> None:
    model, x = detector
    call, before = nn.Module._call_impl, [dict(vars(m)) for m in model.modules()]
    count = len(model.seen)
    with torch.no_grad():
        module(x)
    assert len(model.seen) == count + 1
    assert nn.Module._call_impl is call
    assert [dict(vars(m)) for m in model.modules()] == before


def test_compiling_leaves_no_effects() -> None:
    model = Detector().eval()
    memplan.compile(model, torch.randn(64, 16), options=SLOW)
    assert model.seen == []


def test_new_weights_are_used(detector: Any, module: Any) -> None:
    model, x = detector
    weight = model.body[0].weight
    with torch.no_grad():
        weight.mul_(2)
        try:
            same(module(x), model(x))
        finally:
            weight.div_(2)


def test_hooks_and_training_run_the_model(detector: Any) -> None:
    model, x = copy.deepcopy(detector[0]), detector[1]
    module = memplan.compile(model, x, options=SLOW)
    seen: list[object] = []
    handle = model.body.register_forward_hook(lambda *_: seen.append("body"))
    with torch.no_grad():
        same(module(x), model(x))
    assert seen == ["body", "body"]
    handle.remove()
    model.train()
    with pytest.warns(UserWarning, match="it is in training mode"):
        result = module(x)
    assert all(
        each.requires_grad for each in result.values() if each.is_floating_point()
    )


def test_results_have_no_gradients(detector: Any, module: Any) -> None:
    _, x = detector
    (value,) = (each for each in module(x).values() if each.is_floating_point())
    with pytest.raises(UsageError, match="no gradients"):
        value.sum().backward()


def test_an_error_of_the_models_own_is_raised_once(detector: Any, module: Any) -> None:
    model, _ = detector
    count = len(model.seen)
    error = pytest.raises(RuntimeError, match="shapes cannot be multiplied")
    with torch.no_grad(), error, pytest.warns(UserWarning, match="the model fails"):
        module(torch.randn(64, 15))
    assert len(model.seen) == count


def test_threads(detector: Any, module: Any) -> None:
    model, _ = detector
    inputs = [torch.randn(64, 16) for _ in range(4)]
    with torch.no_grad():
        expected = [model(each) for each in inputs]
    found: dict[int, Any] = {}

    def calls(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                found[i] = module(inputs[i])

    threads = [threading.Thread(target=calls, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, each in enumerate(expected):
        same(found[i], each)


def test_a_copy_runs_the_model(detector: Any, module: Any) -> None:
    other = copy.deepcopy(module)
    assert other.memplan.status == "unchanged"
    with torch.no_grad():
        same(other(detector[1]), detector[0](detector[1]))


def test_budgets_are_kept_by_loops_in_parts(detector: Any) -> None:
    model, x = detector[0], torch.randn(512, 16)
    module = memplan.compile(model, x, "40%", SLOW)
    plan = module.memplan
    assert plan.loops == sum(part.loops for part in plan.parts.values()) > 0
    assert plan.bytes_after <= 0.4 * plan.bytes_before
    with torch.no_grad():
        same(module(x), model(x))


def test_a_part_that_exceeds_its_share_is_named(detector: Any) -> None:
    with pytest.raises(NoPlanError, match="body: "):
        memplan.compile(*detector, "1%", SLOW)


def test_a_part_that_is_another_module_runs_the_model(detector: Any) -> None:
    model, x = copy.deepcopy(detector[0]), detector[1]
    module = memplan.compile(model, x, options=SLOW)
    before = model.head
    model.head = nn.Sequential(nn.Linear(16, 4), nn.Tanh())
    with torch.no_grad(), pytest.warns(UserWarning, match="head is another module"):
        same(module(x), model(x))
    model.head = before
    with torch.no_grad():
        same(module(x), model(x))


def test_a_part_in_training_mode_runs_itself(detector: Any) -> None:
    model, x = copy.deepcopy(detector[0]), detector[1]
    model.head.training = True
    module = memplan.compile(model, x, options=SLOW)
    assert list(module.memplan.parts) == ["body"]
    with torch.no_grad():
        same(module(x), model(x))


class Asking(nn.Module):
    """What it does depends on whether gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
        self.runner = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
        self.memplan = 3.0

    def forward(self, x: Any) -> Any:
        y = self.runner(self.parts(x))
        y = -y if y.sum() > 0 else y
        return self.memplan * y if torch.is_grad_enabled() else y


def test_names_and_modes_are_the_models_own() -> None:
    model, x = Asking().eval(), torch.randn(64, 16)
    module = memplan.compile(model, x, options=SLOW)
    assert list(module.memplan.parts) == ["parts", "runner"]
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x))
    with pytest.warns(UserWarning, match="is_grad_enabled"):
        torch.testing.assert_close(module(x), model(x))


class Keeps(nn.Module):
    """Beside the part that needs most, the model keeps values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 16))

    def forward(self, x: Any) -> Any:
        y = self.wide(x)
        more = [y * i for i in range(8)] if y.sum() > 1e9 else [x] * 8
        return self.wide(x + sum(more))


def test_budgets_count_what_the_model_keeps() -> None:
    model, x = Keeps().eval(), torch.randn(256, 16)
    module = memplan.compile(model, x, "30%", SLOW)
    assert 0 < module.memplan.bytes_after <= 0.3 * module.memplan.bytes_before
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x))


class Opaque(nn.Module):
    """None of its parts can be exported, or gains anything."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.first(x) if x.sum() > 0 else x


def test_a_model_without_such_parts_stays_unchanged() -> None:
    module = memplan.compile(Opaque().eval(), torch.randn(4), options=SLOW)
    assert module.memplan.status == "unchanged"
    assert "torch.export cannot take this model" in module.memplan.reason
    assert not module.memplan.parts
    least = memplan.compile(Opaque().eval(), torch.randn(4), "min", options=SLOW)
    assert least.memplan.status == "unchanged"
    with pytest.raises(NoPlanError):
        memplan.compile(Opaque().eval(), torch.randn(4), "1%", options=SLOW)
    with pytest.raises(NoPlanError, match=r"torch\.export"):
        memplan.compile_levels(Opaque().eval(), torch.randn(4), options=SLOW)
