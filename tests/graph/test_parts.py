"""Submodules that something else answers for while their model is called."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.graph.parts import Part, replaced  # noqa: E402

pytestmark = pytest.mark.torch


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})

    def forward(self, x: Any) -> Any:
        return self.inner["b"](self.inner["a"](x))


def answering(value: float, calls: list[object] | None = None) -> Part:
    def part(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if calls is not None:
            calls.append((args, kwargs))
        return partial(torch.full_like, args[0], value)

    return part


def state(model: nn.Module) -> list[object]:
    return [dict(vars(each)) for each in model.modules()]


def test_parts_answer_while_it_is_active() -> None:
    model, x = Whole(), torch.randn(3)
    before, call = state(model), nn.Module._call_impl
    calls: list[Any] = []
    with replaced(model, {"inner.a": answering(2.0, calls)}):
        assert torch.equal(model(x), torch.full((3,), 2.0).tanh())
        assert state(model) == before
    assert calls[0][0][0] is x
    assert nn.Module._call_impl is call
    assert torch.equal(model(x), x.relu().tanh())


def test_a_part_may_leave_the_call_to_the_module_or_make_it_itself() -> None:
    model, x = Whole(), torch.randn(3)
    with replaced(model, {"inner.a": lambda *_: None}):
        assert torch.equal(model(x), x.relu().tanh())
    with replaced(model, {"inner.a": lambda args, _: lambda: model.inner["a"](*args)}):
        assert torch.equal(model(x), x.relu().tanh())


def test_the_inner_of_two_answers() -> None:
    model, x = Whole(), torch.randn(3)
    with replaced(model, {"inner.a": answering(2.0), "inner.b": answering(3.0)}):
        with replaced(model, {"inner.b": answering(4.0)}):
            assert torch.equal(model(x), torch.full((3,), 4.0))
        assert torch.equal(model(x), torch.full((3,), 3.0))


def test_an_exception_ends_it() -> None:
    model, call = Whole(), nn.Module._call_impl

    def fails(*_: object) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), replaced(model, {"inner.a": fails}):
        model(torch.randn(3))
    assert nn.Module._call_impl is call


def test_modules_with_hooks_run_themselves() -> None:
    model, x = Whole(), torch.randn(3)
    seen: list[object] = []
    handle = model.inner["a"].register_forward_hook(lambda *_: seen.append("own"))
    with replaced(model, {"inner.a": answering(2.0)}):
        assert torch.equal(model(x), x.relu().tanh())
    handle.remove()
    every = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("a"))
    with replaced(model, {"inner.a": answering(2.0)}):
        assert torch.equal(model(x), x.relu().tanh())
    every.remove()
    assert seen == ["own", "a", "a", "a"]


def test_other_threads_run_the_model() -> None:
    """Also where calls end in another order than they began."""
    model, x = Whole(), torch.randn(3)
    call = nn.Module._call_impl
    found: dict[str, Any] = {}
    within, leave = threading.Event(), threading.Event()

    def first() -> None:
        with replaced(model, {"inner.a": answering(2.0)}):
            within.set()
            leave.wait()
            found["first"] = model(x)

    thread = threading.Thread(target=first)
    thread.start()
    within.wait()
    found["outside"] = model(x)
    with replaced(model, {"inner.a": answering(5.0)}):
        leave.set()
        thread.join()
        found["second"] = model(x)
    assert torch.equal(found["outside"], x.relu().tanh())
    assert torch.equal(found["first"], torch.full((3,), 2.0).tanh())
    assert torch.equal(found["second"], torch.full((3,), 5.0).tanh())
    assert nn.Module._call_impl is call


def test_what_others_put_on_top_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Whole(), torch.randn(3)
    call = nn.Module._call_impl
    calls: list[str] = []
    monkeypatch.setattr(nn.Module, "_call_impl", call)  # is put back at the end
    with replaced(model, {"inner.a": answering(2.0)}):
        ours = nn.Module._call_impl

        def on_top(module: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(type(module).__name__)
            return ours(module, *args, **kwargs)

        nn.Module._call_impl = on_top
    assert nn.Module._call_impl is on_top
    assert torch.equal(model(x), x.relu().tanh())
    with replaced(model, {"inner.a": answering(2.0)}):
        assert torch.equal(model(x), torch.full((3,), 2.0).tanh())
    assert calls == ["Whole", "ReLU", "Tanh", "Whole", "ReLU", "Tanh"]
    nn.Module._call_impl = ours
    with replaced(model, {}):  # ends what is ours
        assert nn.Module._call_impl is ours
    assert nn.Module._call_impl is call
