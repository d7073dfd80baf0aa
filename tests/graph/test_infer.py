"""Shapes, strides and aliases of results, against those of real tensors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from memplan.graph.infer import Inference, meta_of
from memplan.graph.program import Op, Program, Ref

aten = torch.ops.aten


@st.composite
def laid_out(draw: st.DrawFn, least: int = 1) -> torch.Tensor:
    """A tensor of `least` to four dimensions, many of length 1, that lie in any order
    in memory, perhaps as a part of a larger one."""
    shape = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=least, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    made = torch.zeros([shape[i] for i in order])
    made = made.permute([order.index(i) for i in range(len(shape))])
    if draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        made = made.narrow(dim, 0, 1)
    return made


@st.composite
def sizes(draw: st.DrawFn, count: int) -> list[int]:
    """A shape of `count` elements."""
    shape = [1] * draw(st.integers(1, 4))
    for prime in (2, 3):
        while count % prime == 0:
            count //= prime
            shape[draw(st.integers(0, len(shape) - 1))] *= prime
    assert count == 1
    return shape


@given(st.data())
def test_reshapes_lie_as_those_of_real_tensors(data: st.DataObject) -> None:
    x = data.draw(laid_out())
    shape = data.draw(sizes(x.numel()))
    chosen = st.sampled_from([aten.view.default, aten.reshape.default])
    target = data.draw(chosen)
    try:
        real = target(x, shape)
    except RuntimeError:  # no view has this shape
        return
    program = Program(["x"], {}, [], (), {"x": meta_of(x)}, {"x": "x"})
    Inference().add(program, Op("y", target, (Ref("x"), shape)))
    assert program.metas["y"] == meta_of(real)
    shares = real.data_ptr() == x.data_ptr()
    assert program.roots["y"] == ("x" if shares else "y")


UNARY = [aten.gelu.default, aten.exp.default, aten.silu.default, aten.relu.default]
BINARY = [aten.add.Tensor, aten.div.Tensor, aten.mul.Tensor]


@given(st.data())
def test_results_lie_as_those_of_real_tensors(data: st.DataObject) -> None:
    x = data.draw(laid_out(4))
    kind = data.draw(st.sampled_from(["alone", "with a number", "with another"]))
    tensors: dict[str, torch.Tensor] = {"x": x}
    args: tuple[Any, ...] = (Ref("x"),)
    target = data.draw(st.sampled_from(UNARY if kind == "alone" else BINARY))
    if kind == "with a number":
        args = (Ref("x"), 2.0)
    elif kind == "with another":
        order = data.draw(st.permutations(range(x.dim())))
        shape = [size if data.draw(st.booleans()) else 1 for size in x.shape]
        made = torch.zeros([shape[i] for i in order])
        tensors["y"] = made.permute([order.index(i) for i in range(x.dim())])
        args = (Ref("x"), Ref("y"))
    metas = {name: meta_of(tensor) for name, tensor in tensors.items()}
    program = Program([*tensors], {}, [], (), metas, {name: name for name in tensors})
    Inference().add(program, Op("z", target, args))
    real = target(*(tensors[arg.name] if isinstance(arg, Ref) else arg for arg in args))
    assert program.metas["z"] == meta_of(real)
    assert program.roots["z"] == "z"


@given(laid_out(4).filter(lambda x: 1 in x.shape))
def test_normalised_images_lie_as_those_of_real_tensors(x: torch.Tensor) -> None:
    names = ["weight", "bias", "mean", "var"]
    tensors = {"x": x, **{name: torch.ones(x.shape[1]) for name in names}}
    metas = {name: meta_of(tensor) for name, tensor in tensors.items()}
    program = Program([*tensors], {}, [], (), metas, {name: name for name in tensors})
    rest = False, 0.1, 1e-5, False
    args = *map(Ref, tensors), *rest
    Inference().add(program, Op("z", aten.batch_norm.default, args))
    real = aten.batch_norm.default(*tensors.values(), *rest)
    assert program.metas["z"] == meta_of(real)


class Holding:
    """An operator with a weight of its own."""

    def __init__(self) -> None:
        self.weight = torch.zeros(3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_what_is_known_of_operators_is_shared_and_keeps_no_weights() -> None:
    x = torch.zeros(3)
    program = Program(["x"], {}, [], (), {"x": meta_of(x)}, {"x": "x"})
    shared = Inference()
    held = Holding()
    gone = weakref.ref(held)
    runs = []

    class Counting(Inference):
        def _run(self, *given: Any) -> Any:
            runs.append(given[1])
            return super()._run(*given)

    for _ in range(2):
        inference = Counting(shared)
        for i in range(2):
            inference.add(program, Op(f"y{i}", aten.relu.default, (Ref("x"),)))
            inference.add(program, Op(f"z{i}", held, (Ref("x"),)))
    assert runs == [aten.relu.default, held, held]
    assert program.metas["y0"] == program.metas["z1"] == meta_of(x)
    del held, inference
    runs.clear()
    gc.collect()
    assert gone() is None
