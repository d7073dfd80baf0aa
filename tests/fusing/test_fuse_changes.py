"""Fused models that change, and calls that are traced, copied, forked or threaded."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, Small, agree, is_whole, noise, prepared, program, small  # noqa: E402
from torch import nn  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.compiling.parts import CompiledParts  # noqa: E402
from memplan.compiling.report import Fallback  # noqa: E402
from memplan.errors import UsageError  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.graph import programs  # noqa: E402


def _optimizer(model: Any) -> None:
    step = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(noise()).sum().backward()
    step.step()


def _swap(model: Any) -> None:
    model.conv.weight = nn.Parameter(torch.ones_like(model.conv.weight))


def _average(model: Any) -> None:
    for each in model.parameters():
        each.data.copy_(each.data * 0.5 + 0.1)


def _statistics(model: Any) -> None:
    model.train()
    model(noise() + 1)
    model.eval()


def _replace(model: Any) -> None:
    model.tail[0] = nn.Tanh()


def _functional(model: Any) -> None:
    mean, var = model.bn.running_mean, model.bn.running_var
    nn.functional.batch_norm(torch.rand(2, 4, 8, 8), mean, var, training=True)


def _stride(model: Any) -> None:
    model.conv.stride = (2, 2)


def _forward(model: Any) -> None:
    model.forward = lambda x: x[:, :1] * 3


def _scale(model: Any) -> None:
    model.scale = 3.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda m: m.conv.weight.mul_(3),
    "optimizer": _optimizer,
    "state dict": lambda m: m.load_state_dict(Small().state_dict()),
    "assigned state": lambda m: m.load_state_dict(Small().state_dict(), assign=True),
    "another parameter": _swap,
    "averaged through data": _average,
    "data exchanged": lambda m: setattr(m.bn.weight, "data", torch.full((4,), 3.0)),
    "statistics": _statistics,
    "statistics by function": _functional,
    "module replaced": _replace,
    "module gone": lambda m: m.tail.pop(2),
    "a number of a layer": _stride,
    "a number of the model": _scale,
    "forward replaced": _forward,
    "bias gone": lambda m: setattr(m.conv, "bias", None),
    "to another format": lambda m: m.to(memory_format=torch.channels_last),
    "shared memory": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changes_are_seen(kind: str) -> None:
    model = small()
    ready = prepared(model)
    with torch.no_grad():
        before = ready(noise())
        CHANGES[kind](model)
    agree(model, ready)
    if kind not in ("to another format", "shared memory"):
        after = ready(noise())
        assert after.shape != before.shape or not torch.equal(after, before)


def test_another_type_is_as_in_the_model() -> None:
    model = small()
    ready = prepared(model)
    model.to(torch.bfloat16)
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(noise())
    with torch.no_grad(), pytest.raises(RuntimeError):
        ready(noise())
    x = noise().to(torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=5e-2, atol=5e-2)


def test_modules_in_training_mode() -> None:
    model = small()
    ready = prepared(model)
    kept = copy.deepcopy(model.state_dict())
    model.bn.train()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = ready(noise())
        assert isinstance(program(ready), Fallback)
        mine = model.state_dict()
        model.load_state_dict(kept)
        torch.testing.assert_close(found, model(noise()))
        for name, value in model.state_dict().items():
            assert torch.equal(value, mine[name]), name  # updated once, not more often
    model.bn.eval()
    agree(model, ready)
    assert isinstance(program(ready), Compiled)
    ready.train()
    assert model.training
    assert model.tail.training
    assert ready(noise()).requires_grad


@pytest.mark.parametrize("where", ["", "conv", "tail", "tail.0"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_run(where: str, when: str) -> None:
    model = small()
    ready = fuse(model, FORCED)
    if when == "after":
        agree(model, ready)
    seen: list[Any] = []

    def hook(module: Any, args: Any, output: Any) -> Any:
        seen.append(module)
        return output + 1

    handle = model.get_submodule(where).register_forward_hook(hook)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ready(noise())
        assert seen == [model.get_submodule(where)]
        torch.testing.assert_close(found, model(noise()))
        handle.remove()
        agree(model, ready)
        before = model.get_submodule(where).register_forward_pre_hook(
            lambda module, args: (args[0] * 2,)
        )
        agree(model, ready)
    before.remove()
    agree(model, ready)
    assert isinstance(program(ready), Compiled)


def test_hooks_on_all_modules_and_on_the_fused_one() -> None:
    model = small()
    ready = prepared(model)
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(module)
    )
    with torch.no_grad():
        ready(noise())
    handle.remove()
    assert model.conv in seen
    ready.register_forward_hook(lambda module, args, output: output * 0)
    with torch.no_grad():
        assert not ready(noise()).any()


class Counts(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls, self.last = how, 0, None
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        if self.how == "buffer":
            self.seen += 1
        elif self.how == "number":
            self.calls += 1
        elif self.how == "kept":
            self.last = y
        elif self.calls == 0:
            self.calls = 1
        return y


@pytest.mark.parametrize("how", ["buffer", "number", "kept", "once"])
def test_what_a_model_notes_is_noted(how: str) -> None:
    model = Counts(how).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(1, 4):
            found = ready(noise())
            assert int(model.seen) == (turn if how == "buffer" else 0)
            assert model.calls == {"number": turn, "once": 1}.get(how, 0)
            if how == "kept":
                assert model.last is found
    made = program(ready)
    assert is_whole(made) if how == "once" else isinstance(made, CompiledParts)


def test_tracing_leaves_no_mark_and_random_numbers_are_the_users() -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())

        def forward(self, x: Any) -> Any:
            return self.body(x + torch.tensor([1.0]))

    model = Makes().eval()
    names = set(vars(model))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    prepared(model)
    assert torch.equal(torch.rand(3), expected)
    assert set(vars(model)) == names


def test_weights_of_inference_mode_are_left_alone() -> None:
    with torch.inference_mode():
        model = small()
        ready = fuse(model, FORCED)
        with pytest.warns(UserWarning, match="inference mode"):
            found = ready(noise())
        torch.testing.assert_close(found, model(noise()))


def test_inference_mode_and_back() -> None:
    model = small()
    model.tail.append(nn.Conv2d(4, 4, 3, groups=4).eval())
    ready = fuse(model, FORCED)
    with torch.inference_mode():
        x = noise(2, 3, 16, 16)
        torch.testing.assert_close(ready(x), model(x))
    for each in (x, noise(2, 3, 16, 16)):
        agree(model, ready, each)
    assert not ready(noise(2, 3, 16, 16)).is_inference()
    with torch.inference_mode():
        agree(model, ready, x)


def test_gradients_are_refused_and_results_may_be_written_to() -> None:
    model = small()
    ready = prepared(model)
    found = ready(noise())
    found.mul_(2)
    found[0] = 0
    assert found.requires_grad
    with pytest.raises(UsageError, match="no gradients"):
        found.sum().backward()
    x = noise().requires_grad_()
    ready(x).sum().backward()
    assert x.grad is not None
    model.requires_grad_(False)
    assert not ready(noise()).requires_grad


def test_given_tensors_keep_their_gradients() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())

        def forward(self, x: Any) -> Any:
            return x, self.body(x), x.view(-1), self.body(x).argmax(1)

    ready, x = prepared_nest(Gives().eval()), noise()
    same, found, view, index = ready(x)
    assert same is x
    assert not x.requires_grad
    assert found.requires_grad
    assert view.data_ptr() == x.data_ptr()
    assert not index.requires_grad


def prepared_nest(model: Any) -> Any:
    ready = fuse(model, FORCED)
    with torch.no_grad():
        ready(noise())
    assert isinstance(program(ready), Compiled)
    return ready


def test_autocast_and_modes() -> None:
    model = small()
    ready = prepared(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert ready(noise()).dtype == model(noise()).dtype
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        ready(noise())
    assert counter.get_total_flops() > 0
    with torch.no_grad(), torch.device("cpu"):
        agree(model, ready)
    x = noise()
    with torch.device("meta"):
        agree(model, ready, x)


def test_traced_exported_and_transformed() -> None:
    model = small()
    ready = prepared(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(ready, (noise(),))
        torch.testing.assert_close(traced(noise()), model(noise()))
        exported = torch.export.export(ready, (noise(),), strict=False).module()
        torch.testing.assert_close(exported(noise()), model(noise()))
        symbolic = torch.fx.symbolic_trace(nn.Sequential(ready))
        torch.testing.assert_close(symbolic(noise()), model(noise()))
        mapped = torch.vmap(ready)(noise()[:, None])
        torch.testing.assert_close(mapped[:, 0], model(noise()))
    weights = {name: value * 2 for name, value in ready.named_parameters()}
    call = torch.func.functional_call
    with torch.no_grad():
        found, expected = call(ready, weights, noise()), call(model, weights, noise())
    torch.testing.assert_close(found, expected)
    agree(model, ready)


def test_copies_and_pickles() -> None:
    model = small()
    ready = prepared(model)
    for other in (copy.deepcopy(ready), pickle.loads(pickle.dumps(ready))):
        assert type(other) is type(ready)
        assert other.model is not model
        agree(model, other)
        with torch.no_grad():
            other.model.conv.weight.zero_()
        agree(other.model, other)
    assert copy.copy(ready).model is model
    assert ready.scale == 2.0
    assert repr(ready).startswith("Fused[Small](\n  (conv): Conv2d(")
    assert list(ready.state_dict()) == list(model.state_dict())
    assert not hasattr(ready, "nothing")
    ready.load_state_dict(Small().state_dict())
    agree(model, ready)


def test_threads_with_several_batches() -> None:
    model = small()
    ready = fuse(model, FORCED)
    wrong: list[Any] = []

    def work(batch: int) -> None:
        x = noise(batch, 3, 8, 8)
        with torch.no_grad():
            expected = model(x)
            for _ in range(30):
                found = ready(x)
                if not torch.allclose(found, expected, atol=1e-5):
                    wrong.append(batch)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = small()
        ready = prepared(model)
        expected = model(noise()).detach()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            code = 1
            try:
                with torch.no_grad():
                    found = ready(noise())
                    ready(noise(1, 3, 8, 8))
                code = 0 if torch.allclose(found, expected, atol=1e-5) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(threads)


def test_memory_is_shared_by_shapes_and_let_go() -> None:
    model = small()
    ready = fuse(model, FORCED)
    for size in (32, 16, 8, 24):
        agree(model, ready, noise(1, 3, size, size))
    largest = max(each.runner.schedule.bytes for each in ready.programs())
    assert ready._arenas.bytes <= largest
    gone = weakref.ref(ready._arenas), weakref.ref(program(ready).runner)
    del ready
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_program_that_fails_is_given_up() -> None:
    model = small()
    ready = prepared(model)
    program(ready).runner.tape = lambda *_: 1 / 0
    with torch.no_grad(), pytest.warns(UserWarning, match="ZeroDivisionError"):
        torch.testing.assert_close(ready(noise()), model(noise()))
    agree(model, ready)
    assert isinstance(program(ready), Fallback)


def test_models_raise_what_they_raise() -> None:
    ready = fuse(small(), FORCED)
    with torch.no_grad():
        for wrong in (noise(2, 4, 8, 8), noise(2, 3, 8, 8).long(), None):
            with pytest.raises((RuntimeError, TypeError)) as mine:
                small()(wrong)
            with pytest.raises(mine.type):
                ready(wrong)
        with pytest.raises(TypeError):
            ready()
        with pytest.raises(TypeError):
            ready(noise(), noise())
    with pytest.raises(UsageError, match="Module"):
        fuse(print)


def test_a_device_that_computes_nothing() -> None:
    with torch.device("meta"):
        model = small()
    ready = fuse(model, FORCED)
    with torch.no_grad(), pytest.warns(UserWarning, match="runs on meta") as told:
        assert ready(noise().to("meta")).shape == (2, 4, 4, 4)
    assert [one.filename for one in told] == [__file__]  # the line that called it


def test_shapes_share_packed_weights() -> None:
    model, ready = small(), None
    ready = prepared(model)
    with torch.no_grad():
        for _ in range(2):
            for batch in (2, 3):
                agree(model, ready, noise(batch, 3, 8, 8))
            packs = [each.runner.schedule.joined.packs for each in ready.programs()]
            held = [
                {each.weights.data_ptr() for each in pack.convolutions.values()}
                for pack in packs
            ]
            assert held[-1] == held[-2]
            model.conv.weight.mul_(2)


def test_changes_and_shapes_without_end_cost_few_compilations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "MOST_SHAPES", 2)
    model = small()
    ready = prepared(model)
    with torch.no_grad():
        for _ in range(12):  # of weights
            model.conv.weight.add_(0.01)
            agree(model, ready)
    for _ in range(6):
        for batch in (1, 2, 3):
            agree(model, ready, noise(batch, 3, 8, 8))
    assert len(ready.programs()) == 2
    with pytest.warns(UserWarning, match="change again and again"):
        for turn in range(12):  # of modules
            model.scale = float(turn)
            agree(model, ready)


class Tied(nn.Module):
    """A table that is a weight, too; one of the two is all that torch reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(nn.functional.silu(self.layer(self.table(x))))


@pytest.mark.parametrize("name", ["table", "head"])
def test_tensors_that_were_one_may_become_two(name: str) -> None:
    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randint(0, 20, (4, 16))
    ready = fuse(model, FuseOptions(measure=False))
    with torch.no_grad():
        torch.testing.assert_close(model(x), ready(x), rtol=1e-4, atol=1e-5)
        assert isinstance(ready.programs()[0], Compiled)
        getattr(model, name).weight = nn.Parameter(torch.randn(20, 8))
        torch.testing.assert_close(model(x), ready(x), rtol=1e-4, atol=1e-5)
        getattr(model, name).weight.mul_(2)
        torch.testing.assert_close(model(x), ready(x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_compiles() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ready, inside, leave = prepared(small()), threading.Event(), threading.Event()

    class Waits(Small):
        def forward(self, x: Any) -> Any:
            inside.set()
            leave.wait()
            return super().forward(x)

    def work() -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fuse(Waits().eval(), FORCED)(noise())

    other = threading.Thread(target=work)
    other.start()
    try:
        inside.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            code = 1
            signal.alarm(100)  # it would wait for ever
            try:
                with torch.no_grad():
                    ready(noise(3, 3, 8, 8))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        leave.set()
        other.join()
        torch.set_num_threads(threads)
