"""By memplan's verbs and without: users see the same, and their models stay theirs.

Where a verb leaves a model as it is, with a warning, that is right as well.
"""

from __future__ import annotations

import functools
import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import fx  # noqa: E402
from torch._subclasses import FakeTensor  # noqa: E402
from torch.export import exported_program  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking import chunk, workbench  # noqa: E402
from memplan.chunking.module import Chunked  # noqa: E402
from memplan.chunking.options import BudgetError  # noqa: E402
from memplan.chunking.timing import Machine  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.compiling.lazy import Fused  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from tests.graph import behaviours, users  # noqa: E402
from tests.graph.behaviours import Case, called  # noqa: E402

CASES: dict[str, Case] = {
    f"{kind.__name__}: {name}": each
    for kind in (*behaviours.KINDS, *users.KINDS)
    for name, each in kind()
}


def fused(model: Any, inputs: Any) -> Any:
    return memplan.fuse(model, memplan.FuseOptions(measure=False, kernels=("direct",)))


def chunked(model: Any, inputs: Any) -> Any:
    options = memplan.ChunkOptions(max_slowdown=None)
    try:
        return memplan.chunk(model, inputs, "90%", options=options)
    except BudgetError as error:
        return error.closest


def compiled(model: Any, inputs: Any) -> Any:
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=False)
    return memplan.compile(model, inputs, options=options)


COMPARED = (int, float, str, bytes, bytearray, set, type, type(None))
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "fuse": fused,
    "chunk": chunked,
    "compile": compiled,
}


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, no times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.setattr(bench, "seconds", lambda runs, **_: [1.0, 0.5])
        patch.setattr(chunk, "calibrated", lambda _: Machine())
        patch.setattr(workbench, "in_pairs", lambda *_, **__: [1.0])
        collect = functools.cache(exported_program._collect_all_valid_cia_ops)
        patch.setattr(exported_program, "_collect_all_valid_cia_ops", collect)  # slow
        yield
    torch.set_num_threads(threads)


def seen(case: Case, run: Callable[[Any], Any], capsys: Any) -> list[Any]:
    """All that a user sees of a model, and of what `run` makes of it."""
    model = case.model()
    m = run(model)
    found = []
    for each in case.use(m, model):
        found.append(plain(each))
    return [*found, plain(model), capsys.readouterr().out, states()]


def plain(value: Any, within: tuple[int, ...] = ()) -> Any:
    """A value with its types, as something that is compared by ==."""
    assert not isinstance(value, (FakeTensor, fx.Proxy, torch.SymInt)), value
    if isinstance(value, (Fused, Chunked, Compiled)):
        return plain(value.model, within)
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return kind, Seen(torch.from_numpy(value.copy()))
    if isinstance(value, torch.Tensor):
        return kind, Seen(value)
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return kind, value.__qualname__
    if isinstance(value, COMPARED) or id(value) in within:
        return kind, "itself" if id(value) in within else repr(value)
    within = (*within, id(value))
    items = value.items() if isinstance(value, dict) else []
    if isinstance(value, (list, tuple, deque)):
        items = enumerate(value)
    slots = [(name, getattr(value, name)) for name in getattr(value, "__slots__", ())]
    own = [*items, *slots, *getattr(value, "__dict__", {}).items()]
    # Hooks have numbers that count up.
    pairs = [(k, [*v.values()] if "hooks" in str(k) and v else v) for k, v in own]
    return kind, [(str(name), plain(each, within)) for name, each in pairs]


class Seen:
    """A tensor as it was: equal to those of the same kind and values."""

    def __init__(self, value: Any) -> None:
        self.kind = value.dtype, value.shape, value.layout
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        self.value = None if value.is_meta else dense.resolve_conj().clone()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Seen)
        if self.kind != other.kind:
            return False
        return self.value is None or torch.allclose(
            self.value, other.value, 1e-4, 1e-5, equal_nan=True
        )

    def __repr__(self) -> str:
        return f"{self.kind} {self.value}"


def states() -> Any:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", CASES)
def test_users_see_the_same(
    name: str,
    verb: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case, made = CASES[name], VERBS[verb]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        expected = seen(case, lambda model: model, capsys)
        untouched = plain(case.model())
        del told[:]

        def run(model: Any) -> Any:
            before, given = states_kept(), plain(case.inputs)
            module = made(model, case.inputs)
            assert plain(model) == untouched
            assert (states_kept(), plain(case.inputs)) == (before, given)
            assert capsys.readouterr().out == ""
            return module

        assert seen(case, run, capsys) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_a_plain_model_is_not_left_alone(verb: str) -> None:
    case = Case(called)
    module = VERBS[verb](case.model(), case.inputs)
    with torch.no_grad():
        module(case.inputs)
    if verb == "fuse":
        assert all(isinstance(each, Compiled) for each in module.programs())
    else:
        assert module.memplan.status.startswith(verb)


@pytest.mark.parametrize("verb", ["chunk", "compile"])
def test_a_model_that_torch_compile_is_given_stays_what_it_was(verb: str) -> None:
    case = Case(called)
    model = case.model()
    module = VERBS[verb](model, case.inputs)
    with warnings.catch_warnings(record=True), torch.no_grad():
        warnings.simplefilter("always")
        torch.compile(model)  # marks it
    with torch.no_grad():
        module(case.inputs)
        model.mine = True
        with pytest.warns(UserWarning, match=f"memplan.{verb}: the model runs"):
            module(case.inputs)


def states_kept() -> Any:
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),
    )
