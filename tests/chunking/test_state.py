"""What chunking leaves as it was, and what must be as it was when chunked."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.errors import NoPlanError, UsageError  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn
ANY = memplan.ChunkOptions(max_slowdown=None)


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)).eval()


def small(model: Any, x: Any, budget: str = "40%") -> Any:
    return memplan.chunk(model, (x,), budget=budget, options=ANY)


class Writes(nn.Module):
    """Counts its calls in a buffer, or adds to its input."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to, self.inside = to, perceptron()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.to == "buffer":
            self.calls += 1
        else:
            x.add_(1)
        return self.inside(x)


def noise() -> Any:
    return torch.randn(3, 101, 16)


FOUND: list[Any] = []
MARK = "_output_capturing_hooks_installed"


THERE = {"__name__": "transformers.utils.output_capturing", "FOUND": FOUND}
exec("def collect(module, args, result): FOUND.append(result)", THERE)
collect: Any = THERE["collect"]


class Collecting(nn.Module):
    """Installs hooks at its first call, and returns what they collect."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Any) -> Any:
        if not getattr(self, MARK, False):
            setattr(self, MARK, True)
            for layer in self.layers:
                layer.register_forward_hook(collect)
        self.layers(x)
        first, second, third = FOUND
        FOUND.clear()
        return first.sum(-1, keepdim=True) + second.sum(-1, keepdim=True) + third


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("verb", ["chunk", "compile", "fuse"])
def test_hooks_that_a_forward_collects_results_by(verb: str, called: bool) -> None:
    torch.manual_seed(0)
    model, x = Collecting().eval(), torch.randn(3, 101, 16)
    expected = copy.deepcopy(model)(x)
    before = 1 if called else 0
    with torch.no_grad():
        for _ in range(before):
            model(x)
        if verb == "chunk":
            module = small(model, x)
            assert module.memplan.status == "chunked" and not module.memplan.left_alone
        elif verb == "compile":
            options = memplan.CompileOptions(max_slowdown=1e6)
            module = memplan.compile(model, x, options=options)
            assert module.memplan.status == "compiled"
        else:
            module = memplan.fuse(model, memplan.FuseOptions(measure=False))
        if verb != "fuse":  # which may run the model itself
            module(x)
            assert sum(len(each._forward_hooks) for each in model.modules()) == (
                3 * before
            )
        assert relative_error(expected, module(x)) <= 1e-5
        assert relative_error(expected, model(x)) <= 1e-5
        # The model may only now have got its hooks; it did not become another.
        assert relative_error(expected, module(x)) <= 1e-5
    assert sum(len(each._forward_hooks) for each in model.modules()) == 3


def test_hooks_that_collect_come_and_go() -> None:
    model, x = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)), noise()
    module = small(model.eval(), x)
    with torch.no_grad():
        for _ in range(2):
            handle = model[1].register_forward_hook(collect)
            module(x)
            handle.remove()
            module(x)
        assert not FOUND  # the model itself did not run


@functools.wraps(collect)
def around(module: Any, args: Any = (), result: Any = None) -> Any:
    """As a hook, and as a forward, which is given a tensor alone."""
    return (module if result is None else result) + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[1].register_forward_hook(around),
        lambda model: setattr(model, "forward", around),
        lambda model: setattr(model[1], "forward", around),
        lambda model: setattr(model, "mine", collect),
        lambda model: setattr(model, MARK, "mine"),
        lambda model: model.held.update({MARK: True}),
        lambda model: model.add_module(MARK, nn.Identity()),
        lambda model: model.register_buffer("_is_torch_compile", torch.ones(())),
    ],
)
def test_what_looks_like_a_mark_is_a_change(change: Any) -> None:
    model, x = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)), noise()
    model.held = {}
    module = small(model.eval(), x)
    change(model)
    with torch.no_grad(), pytest.warns(UserWarning, match="the model runs unchanged"):
        module(x)
    FOUND.clear()


@pytest.mark.parametrize("to", ["buffer", "input"])
def test_what_the_model_writes_to_is_put_back(to: str) -> None:
    model, x = Writes(to).eval(), torch.zeros(3, 101, 16)
    module = small(model, x)
    assert model.calls == 0
    assert not x.any()
    assert module.memplan.status == "chunked"
    assert "writes to its" in module.memplan.left_alone[""]
    with torch.no_grad():
        assert relative_error(model(x.clone()), module(x.clone())) <= 1e-5


def test_autocast_is_as_it_was(attention: Any) -> None:
    _, x, plain = attention
    model = perceptron()
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(UserWarning, match="autocast off, not cpu to torch.bfloat16"):
            assert plain(x).dtype == plain.model(x).dtype
        # Beside so many rows, the scratch of some processors' kernels is little.
        rows = torch.randn(2, 2048, 16)
        cast = small(model, rows)
        with torch.no_grad():
            expected, found = model(rows), cast(rows)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert relative_error(expected, found) < 0.05  # kernels differ with rows
    with pytest.warns(UserWarning, match="autocast cpu to torch.bfloat16, not off"):
        assert cast(rows).dtype == torch.float32


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (lambda: [nn.Conv1d(4, 32, 3, 2, 1), nn.SiLU(), nn.Conv1d(32, 4, 1)], (4, 397)),
        (
            lambda: [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 3, 1)],
            (3, 47, 61),
        ),
        (lambda: [nn.Conv2d(3, 16, 1), nn.MaxPool2d(3, 2, 1)], (3, 47, 47)),
    ],
)
def test_strides_that_do_not_divide(layers: Any, shape: tuple[int, ...]) -> None:
    model, x = nn.Sequential(*layers()).eval(), torch.randn(1, *shape)
    module = small(model, x, "70%")
    assert module.memplan.status == "chunked"
    other = torch.randn(1, *shape)
    with torch.no_grad():
        assert relative_error(model(other), module(other)) <= 1e-5


class Notes(nn.Module):
    """Keeps a number and its last result as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.calls, self.last = perceptron(), 0, None

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.last = self.inside(x)
        return self.last


def test_what_the_model_notes_is_noted() -> None:
    model, x = Notes().eval(), torch.randn(3, 101, 16)
    module = small(model, x)
    assert list(module.chunks) == ["inside"]
    assert "changes its own attributes" in module.memplan.left_alone[""]
    model.calls = 0
    with torch.no_grad():
        assert module(x) is model.last
    assert model.calls == 1


def test_it_stands_in_for_the_model() -> None:
    model, x = perceptron(), torch.randn(3, 101, 16)
    module = small(model, x)
    assert list(module.state_dict()) == list(model.state_dict())
    module.load_state_dict(perceptron().state_dict())
    assert [name for name, _ in module.named_parameters()] == list(model.state_dict())
    assert repr(module).startswith("Chunked[Sequential](\n  (0): Linear(")
    assert (module[0], len(module), list(module)) == (model[0], 3, list(model))
    with torch.no_grad():
        assert relative_error(model(x), module(x)) <= 1e-5
    found = module(x)
    with pytest.raises(UsageError, match=r"memplan\.chunk .* no gradients"):
        found.sum().backward()
    with pytest.warns(UserWarning, match="unchanged: an input requires a gradient"):
        module(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert module.train().training and model[0].training
    with pytest.warns(UserWarning, match="unchanged: it is in training mode"):
        module(x)
    module.eval()
    seen: list[Any] = []
    for part in (model, model[0]):
        hook = part.register_forward_hook(lambda owner, *_: seen.append(owner))
        with torch.no_grad(), pytest.warns(UserWarning, match="hooks"):
            module(x)
        hook.remove()
    assert seen == [model, model[0]]


def test_a_deep_copy_has_weights_of_its_own(attention: Any) -> None:
    _, x, module = attention
    other = copy.deepcopy(module)
    with torch.no_grad():
        before = module(x)
        assert torch.equal(other(x), before)
        other.model.out.weight.zero_()
        assert torch.equal(module(x), before)
        assert not torch.equal(other(x), before)


def test_it_is_not_pickled(attention: Any) -> None:
    with pytest.raises(UsageError, match="its plan"):
        pickle.dumps(attention[2])


def test_weights_of_another_type_run_unchanged() -> None:
    model, x = perceptron(), torch.randn(3, 101, 16)
    module = small(model, x)
    model[0] = nn.Linear(16, 256, dtype=torch.float64)
    with (
        pytest.warns(UserWarning, match=r"with 0\.weight of 256×16 float32 on cpu"),
        pytest.raises(RuntimeError, match="same dtype"),  # as the model does
    ):
        module(x)


def test_nothing_that_needs_less_is_said() -> None:
    x = torch.randn(8, 64)
    with pytest.raises(NoPlanError, match="of the model"):
        memplan.chunk(nn.Linear(64, 64).eval(), x, budget="60%", options=ANY)


class Noisy(nn.Module):
    """Adds noise as it is called, in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = perceptron()

    def forward(self, x: Any) -> Any:
        return self.inside(x + torch.rand_like(x))


def test_random_numbers_are_the_same_each_time() -> None:
    model, x = Noisy().eval(), torch.randn(3, 101, 16)
    module = small(model, x, "60%")
    assert module.memplan.status == "chunked"
    with torch.no_grad():
        torch.manual_seed(7)
        expected = model(x)
        torch.manual_seed(7)
        assert relative_error(expected, module(x)) <= 1e-5
