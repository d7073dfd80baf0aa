"""Calls that are traced, watched, copied, forked, of several threads or shapes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import warnings
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_models import FORCED, Small, agree, noise, prepared, program, small  # noqa: E402
from torch import nn  # noqa: E402

from memplan.errors import UsageError  # noqa: E402
from memplan.fusing import module as fused_module  # noqa: E402
from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.prepared import Fallback, Prepared  # noqa: E402


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
        assert ready(x).is_inference()
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
    assert isinstance(program(ready), Prepared)
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


def test_another_number_of_threads() -> None:
    model = small()
    ready, threads = prepared(model), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        agree(model, ready)
        assert program(ready).engine.threads == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_few_programs_are_kept_and_many_shapes_have_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused_module, "MOST_SHAPES", 2)
    made: list[Any] = []
    plain = fused_module.prepare

    def counted(model: Any, inputs: Any, *rest: Any) -> Any:
        made.append(inputs)
        return plain(model, inputs, *rest)

    monkeypatch.setattr(fused_module, "prepare", counted)
    model = small()
    ready = fuse(model, FORCED)
    for _ in range(12):
        for batch in (1, 2, 3):
            agree(model, ready, noise(batch, 3, 8, 8))
    assert len(ready.programs()) == 2
    assert len(made) <= 5


def test_memory_is_shared_by_shapes_and_let_go() -> None:
    model = small()
    ready = fuse(model, FORCED)
    for size in (32, 16, 8, 24):
        agree(model, ready, noise(1, 3, size, size))
    largest = max(each.engine.arena.bytes for each in ready.programs())
    assert ready._arena_pool.bytes <= largest + 64
    gone = weakref.ref(ready._arena_pool), weakref.ref(program(ready).engine)
    del ready
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_program_that_fails_is_given_up() -> None:
    model = small()
    ready = prepared(model)
    program(ready).engine.run = lambda inputs: 1 / 0
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
