"""Models that keep something at their first run alone, chunked before that run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn
ANY = memplan.ChunkOptions(max_slowdown=None)
FREE = memplan.CompileOptions(max_slowdown=1e6)


class Keeps(nn.Module):
    """Keeps what `keep` makes of itself and its input at its first run."""

    def __init__(self, keep: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16))
        self.keep = keep
        self.first, self.cache = torch.ones(()), dict[str, Any]()

    def forward(self, x: Any) -> Any:
        if not self.cache:
            self.cache["kept"] = self.keep(self, x)
        return self.inside(x) * self.cache["kept"]


def of_weight(model: Any, _: Any) -> Any:
    return 2 * model.inside[0].weight.mean()


def of_size(_: Any, x: Any) -> Any:
    return torch.arange(x.shape[-1]) + 1.0


def of_input(_: Any, x: Any) -> Any:
    return x.mean()


def number_of_input(_: Any, x: Any) -> float:
    return float(x.mean())


def of_replaced(model: Any, _: Any) -> Any:
    model.first = model.first + model.inside[0].weight.mean()
    return model.first


def made(keep: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return Keeps(keep).eval(), torch.randn(3, 101, 16)


def chunk(model: Any, x: Any) -> Any:
    return memplan.chunk(model, (x,), "40%", options=ANY)


def compiled(model: Any, x: Any) -> Any:
    return memplan.compile(model, (x,), options=FREE)


def is_whole(module: Any) -> bool:
    """Whether the model runs by memplan in one part."""
    if hasattr(module, "chunks"):
        return list(module.chunks) == [""]
    return module.runner is not None


verbs = pytest.mark.parametrize("verb", [chunk, compiled])


def check(module: Any, model: Any, x: Any) -> None:
    """It gives what the model does, which warns if the model itself runs."""
    with torch.no_grad():
        assert relative_error(model(x), module(x)) <= 1e-5


def check_first(module: Any, model: Any, x: Any) -> None:
    """The model itself runs, which is said."""
    with pytest.warns(UserWarning, match="first run fills its caches"):
        check(module, model, x)


@verbs
@pytest.mark.parametrize("keep", [of_weight, of_size, of_replaced])
def test_the_model_itself_makes_its_first_run(verb: Any, keep: Any) -> None:
    model, x = made(keep)
    expected, first = copy.deepcopy(model), model.first
    module = verb(model, x)
    assert is_whole(module)
    assert not model.cache
    assert model.first is first
    check_first(module, expected, x)
    for _ in range(2):
        check(module, expected, x)
    assert torch.equal(model.cache["kept"], expected.cache["kept"])
    assert torch.equal(model.first, expected.first)
    model.cache["kept"] = torch.zeros(())
    with torch.no_grad(), pytest.warns(UserWarning, match="have changed"):
        assert not module(x).any()


@verbs
def test_what_weights_that_are_loaded_before_it_make_is_a_change(verb: Any) -> None:
    model, x = made(of_weight)
    other = Keeps(of_weight).eval()
    module = verb(model, x)
    model.load_state_dict(other.state_dict())
    check_first(module, other, x)
    with pytest.warns(UserWarning, match="have changed"):
        check(module, other, x)


@verbs
def test_it_may_be_called_before(verb: Any) -> None:
    model, x = made(of_weight)
    module = verb(model, x)
    with torch.no_grad():
        model(x)
    check(module, model, x)


class Pairs(Keeps):
    """Keeps numbers in a tuple."""

    def forward(self, x: Any) -> Any:
        if not self.cache:
            self.cache["kept"] = (1.0, float((x > 20).any()))
        return self.inside(x) * (1 + self.cache["kept"][1])


@verbs
def test_what_other_inputs_fill_is_a_change(verb: Any) -> None:
    """Noise did not show that it depends on them."""
    torch.manual_seed(0)
    model, x = Pairs(of_size).eval(), torch.randn(3, 101, 16)
    other = copy.deepcopy(model)
    module = verb(model, x)
    check_first(module, other, 100 * x)
    with pytest.warns(UserWarning, match="have changed"):
        check(module, other, x)
    assert model.cache == other.cache == {"kept": (1.0, 1.0)}


class Differs(Keeps):
    """Its first run gives another result."""

    def forward(self, x: Any) -> Any:
        y = self.inside(x)
        if not self.cache:
            self.cache["kept"] = torch.ones(())
            return y / 2
        return y


@verbs
def test_a_first_run_that_differs_is_as_it_was(verb: Any) -> None:
    torch.manual_seed(0)
    model, x = Differs(of_size).eval(), torch.randn(3, 101, 16)
    other, module = copy.deepcopy(model), verb(model, x)
    assert not is_whole(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parts may wait for the model's first run
        check(module, other, x)
    for _ in range(2):
        check(module, other, x)


@verbs
def test_another_change_beside_it_is_seen(verb: Any) -> None:
    model, x = made(of_weight)
    module = verb(model, x)
    with torch.no_grad():
        model(x)
    model.inside[1] = nn.ReLU()
    with torch.no_grad(), pytest.warns(UserWarning, match="have changed"):
        assert relative_error(model(x), module(x)) == 0


@pytest.mark.parametrize("keep", [of_input, number_of_input])
def test_other_values_that_are_kept_are_refused(keep: Any) -> None:
    model, x = made(keep)
    module = chunk(model, x)
    assert list(module.chunks) == ["inside"]
    assert "run the model once before" in module.memplan.left_alone[""]
    check(module, copy.deepcopy(model), x)
    module = chunk(model, x)  # which has run by now
    assert is_whole(module)
    check(module, model, x)


def test_a_copy_of_one_that_has_not_run_is_to_be_chunked_again() -> None:
    model, x = made(of_weight)
    module = chunk(model, x)
    other = copy.deepcopy(module)
    with pytest.warns(UserWarning, match="copy of a model"):
        check(other, copy.deepcopy(model), x)
    assert not model.cache
    check_first(module, copy.deepcopy(model), x)
    other = copy.deepcopy(module)  # which has run by now
    check(other, copy.deepcopy(model), x)


def test_what_other_values_fill_is_a_change() -> None:
    model, x = made(of_weight)
    module = chunk(model, x)
    with torch.no_grad():
        model.inside[0].weight.mul_(2)
        model(x)
        model.inside[0].weight.div_(2)
    with pytest.warns(UserWarning, match="have changed"):
        check(module, model, x)


class Rescales(nn.Module):
    """Halves a weight at its first run, or at every one."""

    def __init__(self, always: bool, anew: bool) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16))
        self.always, self.anew, self.is_scaled = always, anew, False

    def forward(self, x: Any) -> Any:
        if self.always or not self.is_scaled:
            weight = self.inside[0].weight
            with torch.no_grad():
                if self.anew:
                    weight.data = weight.data / 2
                else:
                    weight.div_(2)
            self.is_scaled = True
        return self.inside(x)


@verbs
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_who_writes_to_parameters_is_refused(
    verb: Any, always: bool, anew: bool
) -> None:
    model, x = Rescales(always, anew).eval(), torch.randn(3, 101, 16)
    weight = model.inside[0].weight.detach().clone()
    with pytest.raises(InputError, match=r"parameter 'inside\.0\.weight'") as caught:
        verb(model, x)
    assert ("run the model once before" in str(caught.value)) is not always
    assert torch.equal(model.inside[0].weight, weight)
    assert not model.is_scaled
    if not always:
        with torch.no_grad():
            model(x)
        module = verb(model, x)
        assert is_whole(module)
        check(module, model, x)
