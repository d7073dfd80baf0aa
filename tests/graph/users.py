"""What ordinary users do with models: calls, changes, and what else."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.graph.behaviours import Case, attempt, noise


# What a forward is called with: calls of a forward that takes anything.
@dataclasses.dataclass
class Batch:
    image: Any
    label: Any = None


def _taking(
    m: Any, x: Any, *more: Any, flag: Any = True, scale: Any = None, **named: Any
) -> Any:
    """Takes tensors, and nests of them, and other values."""
    while not isinstance(x, torch.Tensor):
        x = (
            x.image
            if isinstance(x, Batch)
            else next(iter(x.values() if isinstance(x, dict) else x))
        )
    y = m.body(x)
    for each in (*more, *named.values()):
        if isinstance(each, torch.Tensor):
            y = y + each if each.dtype != torch.bool else y.masked_fill(each, 0)
        elif isinstance(each, (int, float, np.number)):
            y = y * float(each)
        elif isinstance(each, list):
            each.append(y.shape)
    return y * (2 if flag else 3) * (1 if scale is None else scale)


def _added(m: Any, x: Any) -> Any:
    kept: list[Any] = []
    return [m(x, kept), m(x, kept), kept]


CALLS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "by name": lambda m, x: [m(x=x), m(flag=False, x=x)],
    "other values": lambda m, x: [m(x, flag=each) for each in (False, "", 2)],
    "a tensor twice": lambda m, x: [m(x, x), m(x, x.clone()), m(x, x)],
    "numbers": lambda m, x: [
        m(x, 2),
        m(x, 2.0),
        m(x, np.float32(2)),
        m(x, np.int64(3)),
    ],
    "masks": lambda m, x: [m(x, mask=x > n) for n in (0, 1)],
    "a dict": lambda m, x: [m({"a": x}), m({"a": x, "b": 3}), m({"b": x + 1, "a": x})],
    "a list to add to": _added,
    "sparse": lambda m, x: [attempt(m, x.to_sparse()), m(x)],
    "strides": lambda m, x: [m(x.transpose(2, 3)), m(x[..., ::2]), m(x.flip(-1))],
    "nothing": lambda m, x: [attempt(m), attempt(m, None), attempt(m, x, nonsense=3)],
}


def calls() -> Iterator[tuple[str, Case]]:
    for name, call in CALLS.items():

        def use(m: Any, model: Any, call: Any = call) -> Iterator[Any]:
            with torch.no_grad():
                yield from call(m, noise())
                yield from call(m, noise(seed=2))
            found = call(m, noise())
            yield [each.detach() for each in found if isinstance(each, torch.Tensor)]

        yield name, Case(use, _taking)


# What a user does between calls, to the model or to what stands in for it.
def _trained(m: Any) -> None:
    m.train()
    step = torch.optim.SGD(m.parameters(), lr=0.5)
    for turn in range(2):
        m(noise(seed=turn)).sum().backward()
        step.step()
        step.zero_grad()
    m.eval()


def _averaged(m: Any) -> None:
    for each in m.parameters():
        each.data.mul_(0.5)


def _saved(m: Any) -> None:
    file = io.BytesIO()
    torch.save(m.state_dict(), file)
    file.seek(0)
    state = {name: each + 1 for name, each in torch.load(file).items()}
    m.load_state_dict(state)


def _unnormed(m: Any) -> None:
    parametrizations.weight_norm(m.body[0])
    m(noise())
    parametrize.remove_parametrizations(m.body[0], "weight")


def _pruned(m: Any) -> None:
    prune.l1_unstructured(m.body[0], "weight", amount=0.5)


def _added_to(m: Any) -> None:
    m.register_buffer("extra", torch.ones(1), persistent=False)
    m.register_parameter("more", nn.Parameter(torch.ones(1)))
    m.tail = nn.Linear(2, 2)
    m.note = "text"


def _deleted(m: Any) -> None:
    m.extra = 1
    del m.extra
    del m.scale
    m.scale = 4.0


def _config(m: Any) -> None:
    m.config.factor = 3.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda m: setattr(m, "scale", 3.0),
    "a number of a configuration": _config,
    "training": _trained,
    "through data": _averaged,
    "saved and loaded": _saved,
    "assigned": lambda m: m.load_state_dict(_state(m), assign=True),
    "tied": lambda m: setattr(m.body[2], "bias", nn.Parameter(m.body[0].bias[:3])),
    "a layer": lambda m: m.body.__setitem__(1, nn.Tanh()),
    "normed and back": _unnormed,
    "pruned": _pruned,
    "half": lambda m: m.half(),
    "additions": _added_to,
    "deletions": _deleted,
}


def _state(m: Any) -> dict[str, Any]:
    return {name: torch.full_like(each, 0.5) for name, each in m.state_dict().items()}


def _configured(m: Any, x: Any) -> Any:
    return m.body(x) * m.scale * m.config.factor


def changes() -> Iterator[tuple[str, Case]]:
    held = {"config": lambda: types.SimpleNamespace(factor=2.0)}
    for name, change in CHANGES.items():
        for whose in "mine", "theirs":

            def use(
                m: Any, model: Any, change: Any = change, mine: bool = whose == "mine"
            ) -> Iterator[Any]:
                with torch.no_grad():
                    yield m(noise())
                with torch.set_grad_enabled(change is _trained):
                    change(model if mine else m)
                with torch.no_grad():
                    yield [attempt(m, noise(seed=turn)) for turn in (1, 2)]
                yield m.state_dict(), [name for name, _ in m.named_parameters()]
                yield attempt(m, noise().double()), m.training

            if whose == "mine" or name in ("a number", "additions", "deletions"):
                yield f"{name}, {whose}", Case(use, _configured, held)


# What else a user does.
def _hooks(m: Any, model: Any) -> Iterator[Any]:
    seen: list[Any] = []
    for module in (m, model, model.body, model.body[1]):
        for turn in range(2):
            handle = module.register_forward_hook(
                lambda _, args, y: seen.append(y.sum()) or y + 1
            )
            with torch.no_grad():
                yield m(noise(seed=turn))
            handle.remove()
            before = module.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
            with torch.no_grad():
                yield m(noise(seed=turn))
            before.remove()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__ == "ReLU")
    )
    with torch.no_grad():
        yield m(noise())
    handle.remove()
    yield [each for each in seen if each is not False]  # of what stands in, too


def _gradients(m: Any, model: Any) -> Iterator[Any]:
    x = noise().requires_grad_()
    m(x).square().sum().backward()
    yield x.grad, [each.grad for each in model.parameters()]
    model.requires_grad_(False)
    found = m(noise())
    yield found, found.requires_grad
    m(x).sum().backward()
    yield x.grad


def _contexts(m: Any, model: Any) -> Iterator[Any]:
    x = noise()
    with torch.inference_mode():
        yield m(x)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            yield m(x).dtype
        with torch.device("cpu"):
            yield m(x)
        yield torch.vmap(m)(x[None])[0]
        weights = {name: each * 2 for name, each in m.named_parameters()}
        yield torch.func.functional_call(m, weights, (x,))
        yield torch.func.jvp(m, (x,), (torch.ones_like(x),))
        torch.set_default_dtype(torch.float64)
        yield m(x)
        torch.set_default_dtype(torch.float32)
        with torch.autograd.profiler.profile():
            yield m(x)
        yield torch.jit.trace(m, x)(x + 1), m(x)


def _threads(m: Any, model: Any) -> Iterator[Any]:
    found: dict[int, Any] = {}

    def work(turn: int) -> None:
        with torch.no_grad():
            found[turn] = [m(noise(seed=turn)) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    yield [found[turn] for turn in range(4)]


def _forked(m: Any, model: Any) -> Iterator[Any]:
    with torch.no_grad():
        expected = m(noise())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            with torch.no_grad():
                code = int(not torch.allclose(m(noise()), expected, atol=1e-5))
        finally:
            os._exit(code)
    yield os.waitpid(child, 0)[1], expected


def _copies(m: Any, model: Any) -> Iterator[Any]:
    with torch.no_grad():
        for other in (copy.deepcopy(m), copy.copy(m), copy.deepcopy(model)):
            yield other(noise())
        other = copy.deepcopy(m)
        other.body[0].weight.mul_(2)
        yield other(noise()), m(noise())
        file = io.BytesIO()
        torch.save(model.body, file)
        file.seek(0)
        yield torch.load(file, weights_only=False)(noise())


def _compiled(m: Any, model: Any) -> Iterator[Any]:
    torch._dynamo.reset()
    ready = torch.compile(m, backend="eager", dynamic=True)
    with torch.no_grad():
        yield [ready(noise(n, 3, 8, 8)) for n in (2, 3)]
    torch._dynamo.reset()


def _looked_at(m: Any, model: Any) -> Iterator[Any]:
    yield m.scale, m.training, len(m.body), [name for name, _ in m.named_modules()]
    yield hasattr(m, "nothing"), sum(each.numel() for each in m.parameters())
    yield m.get_parameter("body.0.weight"), m.get_submodule("body.1").inplace
    yield [len(list(each)) for each in (m.children(), m.buffers(), m.modules())]
    m.register_state_dict_post_hook(lambda _, state, *__: state.update(more=1))
    yield list(m.state_dict())
    yield m.forward(noise()).detach(), m.eval() is m, m.float() is m


USES = {each.__name__.strip("_"): each for each in (
    _hooks, _gradients, _contexts, _threads, _forked, _copies, _compiled, _looked_at,
)}  # fmt: skip


def uses() -> Iterator[tuple[str, Case]]:
    for name, use in USES.items():
        yield name, Case(use)


KINDS = (calls, changes, uses)
