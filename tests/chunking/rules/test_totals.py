"""Each reduction that loops add up, against the whole operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import Region, call_of, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.chunking.rules.table import flow  # noqa: E402
from memplan.chunking.rules.totals import TOTALS, Accumulation, pieces  # noqa: E402
from memplan.compiling.passes import unrolled  # noqa: E402
from memplan.graph.check import relative_error, tolerance_of  # noqa: E402
from memplan.graph.infer import Inference, meta_of  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from memplan.graph.program import Loop, Op, Program, Ref, mapped, refs  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
aten = torch.ops.aten
Arguments = tuple[Any, ...]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), float("-inf"))


class Draws:
    """Operands of a call: `size` is that of the dimension that is reduced."""

    def __init__(self, size: int, dtype: Any, seed: int, special: float) -> None:
        self.size, self.dtype, self._special = size, dtype, special
        self._generator = torch.Generator().manual_seed(seed)

    def values(self, *shape: int) -> Any:
        if self.dtype == torch.bool:
            return torch.rand(shape, generator=self._generator) < 0.3
        made = torch.randn(shape, generator=self._generator)
        if not self.dtype.is_floating_point:
            return (made * 3).abs().to(self.dtype)
        for value in SPECIAL:
            chosen = torch.rand(shape, generator=self._generator) < self._special
            made = made.masked_fill(chosen, value)
        return made.to(self.dtype)

    def indices(self, high: int, *shape: int) -> Any:
        return torch.randint(0, high, shape, generator=self._generator)


def reductions(name: str, *ways: Any) -> list[Callable[[Draws], Arguments]]:
    """Calls on a tensor of three dimensions, one for each way to name those reduced."""

    def call(way: Any) -> Callable[[Draws], Arguments]:
        overload, *rest = way
        target = getattr(getattr(aten, name), overload)
        return lambda draw: (target, draw.values(3, draw.size, 2), *rest)

    return [call(way) for way in ways]


ALL = ("default",)
DIMS = (("dim_IntList", [1]), ("dim_IntList", [-2, 0], True), ("dim_IntList", None))
REDUCTIONS = {
    "sum": (*FLOATS, *INTEGERS, torch.bool),
    "nansum": FLOATS,
    "mean": FLOATS,
    "amax": (*FLOATS, *INTEGERS, torch.bool),
    "amin": (*FLOATS, *INTEGERS, torch.bool),
    "max": (*FLOATS, *INTEGERS, torch.bool),
    "min": (*FLOATS, *INTEGERS, torch.bool),
    "any": (torch.float32, torch.int64, torch.bool),
    "all": (torch.float32, torch.int64, torch.bool),
    "prod": (torch.float32, torch.bfloat16, torch.int64),
    "count_nonzero": (torch.float32, torch.int64, torch.bool),
    "logsumexp": (torch.float32, torch.float64, torch.bfloat16),
}
WAYS: dict[str, Any] = {
    "sum": (ALL, *DIMS),
    "nansum": (("default", [1]), ("default", None)),
    "mean": (ALL, ("dim", [1]), ("dim", [0, 1], True), ("dim", None)),
    "amax": (("default", [1]), ("default", [1, 2], True), ALL),
    "amin": (("default", [1]), ("default", [1, 2], True), ALL),
    "max": (ALL,),
    "min": (ALL,),
    "any": (ALL, ("dim", 1), ("dims", [0, 1], True)),
    "all": (ALL, ("dim", 1), ("dims", [0, 1], True)),
    "prod": (ALL, ("dim_int", 1), ("dim_int", -2, True)),
    "count_nonzero": (ALL, ("dim_IntList", [1, 0])),
    "logsumexp": (("default", [1]), ("default", [0, 1], True)),
}
Calls = list[Callable[[Draws], Arguments]]
PRODUCTS: dict[str, Calls] = {
    "mm": [lambda d: (aten.mm.default, d.values(3, d.size), d.values(d.size, 4))],
    "bmm": [
        lambda d: (aten.bmm.default, d.values(2, 3, d.size), d.values(2, d.size, 4))
    ],
    "mv": [lambda d: (aten.mv.default, d.values(3, d.size), d.values(d.size))],
    "dot": [lambda d: (aten.dot.default, d.values(d.size), d.values(d.size))],
    "addmm": [
        lambda d: (
            *(aten.addmm.default, d.values(4)),
            *(d.values(3, d.size), d.values(d.size, 4)),
        )
    ],
    "baddbmm": [
        lambda d: (
            *(aten.baddbmm.default, d.values(2, 1, 4)),
            *(d.values(2, 3, d.size), d.values(2, d.size, 4)),
        )
    ],
    "addmv": [
        lambda d: (
            *(aten.addmv.default, d.values(3)),
            *(d.values(3, d.size), d.values(d.size)),
        )
    ],
    "linear": [
        lambda d: (aten.linear.default, d.values(d.size), d.values(4, d.size)),
        lambda d: (aten.linear.default, d.values(3, d.size), d.values(4, d.size)),
        lambda d: (
            *(aten.linear.default, d.values(2, 3, d.size)),
            *(d.values(4, d.size), d.values(4)),
        ),
    ],
    "einsum": [
        lambda d: (
            *(aten.einsum.default, "bik,kbj->ij"),
            [d.values(2, 3, d.size), d.values(d.size, 2, 4)],
        )
    ],
}
# The dimensions of a product before the one that is reduced, and behind it.
MATMULS = [
    ((5, 2, 3), (2, 0, 4)),
    ((), ()),
    ((), (4,)),
    ((3,), ()),
    ((3,), (4,)),
    ((2, 3), (4,)),
    ((2, 3), (2, 0, 4)),
]
ONTO: dict[str, Calls] = {
    "index_add": [
        lambda d: (
            *(aten.index_add.default, d.values(3, 2), 0),
            *(d.indices(3, d.size), d.values(d.size, 2)),
        ),
        lambda d: (
            *(aten.index_add.default, d.values(2, 3), -1),
            *(d.indices(3, d.size), d.values(2, d.size)),
        ),
    ],
    "scatter_add": [
        lambda d: (
            *(aten.scatter_add.default, d.values(3, 2), 0),
            *(d.indices(3, d.size, 2), d.values(d.size, 2)),
        )
    ],
    "scatter_reduce": [
        lambda d, how=how: (  # type: ignore[misc]
            *(aten.scatter_reduce.two, d.values(3, 2), 0),
            *(d.indices(3, d.size, 2), d.values(d.size, 2), how),
        )
        for how in ("sum", "prod", "amax", "amin")
    ],
    "index_put": [
        lambda d: (
            *(aten.index_put.default, d.values(3, 2), [d.indices(3, d.size)]),
            *(d.values(d.size, 2), True),
        ),
        lambda d: (
            aten.index_put.default,
            d.values(3, 2),
            [d.indices(3, d.size, 2), d.indices(2, d.size, 2)],
            *(d.values(d.size, 2), True),
        ),
    ],
}
EXACT = {"amax", "amin", "max", "min", "any", "all", "count_nonzero"}
SIGNED = {"sum", "mean", "prod", *ONTO} - {"scatter_reduce"}  # as torch gives zeros


def matmuls() -> Calls:
    def call(left: tuple[int, ...], right: tuple[int, ...]) -> Any:
        rows = right[:-2] if len(right) > 2 else ()
        return lambda d: (
            aten.matmul.default,
            d.values(*left, d.size),
            d.values(*rows, d.size, *right[-1:]),
        )

    return [call(left, right) for left, right in MATMULS]


PRODUCTS["matmul"] = matmuls()
CALLS: dict[str, Calls] = {
    **{name: reductions(name, *ways) for name, ways in WAYS.items()},
    **PRODUCTS,
    **ONTO,
}
SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
DTYPES = {**dict.fromkeys({**PRODUCTS, **ONTO}, SUMMED), **REDUCTIONS}


def program_of(arguments: Arguments) -> tuple[Program, list[Any]]:
    """A program of one call, and its inputs."""
    target, *args = arguments
    tensors: list[Any] = []

    def named(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Ref(f"x{len(tensors) - 1}")
        if isinstance(value, list):
            return [named(each) for each in value]
        return value

    op = Op("result", target, tuple(map(named, args)))
    program = Program([f"x{i}" for i in range(len(tensors))], {}, [op], None, {}, {})
    program.outputs = (Ref("result"),)
    for name, tensor in zip(program.inputs, tensors, strict=True):
        program.metas[name], program.roots[name] = meta_of(tensor), name
    Inference().add(program, op)
    return program, tensors


def found_for(program: Program) -> dict[Slice, Accumulation]:
    """How the program's operator can be added up, by the dimension."""
    op = program.ops[0]
    assert isinstance(op, Op)
    call = call_of(program, op, "")
    found = {piece: flow(call, piece) for piece in pieces(call)}
    assert all(isinstance(way, Accumulation | None) for way in found.values())
    return {piece: way for piece, way in found.items() if way is not None}


def flat_result(program: Program, tensors: list[Any]) -> Any:
    """What the program without its loops gives."""
    flat = unrolled(program, {}, Inference())
    values = {**dict(zip(program.inputs, tensors, strict=True)), **flat.constants}
    for op in flat.program.ops:
        assert isinstance(op, Op)
        args, kwargs = mapped((op.args, op.kwargs), lambda at: values[at.name])
        values[op.name] = op.target(*args, **kwargs)
    return values[next(refs(flat.program.outputs))]


DRAWN = (
    st.integers(0, 9),
    st.integers(2, 40),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.0, 0.05]),
    st.integers(1, 39),
)


@pytest.mark.parametrize("name", sorted(CALLS))
@examples(8, *DRAWN, soak=200)
def test_totals_are_what_the_operator_gives(
    name: str, way: int, size: int, seed: int, special: float, step: int
) -> None:
    dtypes = DTYPES[name]
    draw = Draws(size, dtypes[seed % len(dtypes)], seed, special)
    program, tensors = program_of(CALLS[name][way % len(CALLS[name])](draw))
    op = program.ops[0]
    assert isinstance(op, Op)
    whole = op.target(*mapped(op.args, lambda at: tensors[int(at.name[1:])]))
    before = [tensor.clone() for tensor in tensors]
    ways = found_for(program)
    assert ways, f"no dimension of {name} is reduced in slices"
    for piece, found in ways.items():
        region = Region({"result": piece}, found.size, min(step, found.size))
        looped = chunked(program, region, Inference())
        assert any(isinstance(each, Loop) and each.totals for each in looped.ops)
        forward = compiled(source(looped, "total"), "total")
        for made in (forward(tensors, {})[0], flat_result(looped, tensors)):
            if not tensors[0].dtype.is_floating_point or name in EXACT:
                assert torch.equal(made.nan_to_num(), whole.nan_to_num())
            assert relative_error([whole], [made]) <= tolerance_of([whole]), piece
            if name in SIGNED and whole.dtype.is_floating_point:
                zero = whole == 0
                assert torch.equal(made[zero].signbit(), whole[zero].signbit())
        assert all(map(same, tensors, before)), "an operand was written to"


def same(one: Any, other: Any) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"dot", "einsum"}))
def test_a_loop_needs_what_is_estimated(name: str) -> None:
    """Operands are the caller's: there is the total, and what is added to it."""
    draw = Draws(4096, DTYPES[name][0], 1, 0.0)
    program, tensors = program_of(CALLS[name][-1](draw))
    op = program.ops[0]
    assert isinstance(op, Op)
    ways = found_for(program)
    *_, piece = (piece for piece, found in ways.items() if found.size == 4096)
    looped = chunked(program, Region({"result": piece}, 4096, 512), Inference())
    forward = compiled(source(looped, "total"), "total")
    measured = activation_peak(lambda: forward(tensors, {}))
    assert measured <= profile(looped).peak + 4096 * 16


def test_every_rule_has_a_call() -> None:
    assert {key.removeprefix("aten.") for key in TOTALS} == set(CALLS)


@pytest.mark.parametrize(
    "arguments",
    [
        (aten.sum.dim_IntList, torch.randn(0, 3), [0]),
        (aten.mm.default, torch.randn(3, 0), torch.randn(0, 4)),
        (aten.sum.default, torch.randn(1, 1)),
        (aten.softmax.int, torch.randn(3, 4), 0),
        (aten.any.default, torch.ones(5, dtype=torch.uint8)),
        (aten.any.dims, torch.ones(5, dtype=torch.bool), []),
        (aten.index_put.default, torch.ones(5), [torch.arange(5)], torch.ones(5)),
        (aten.sum.default, torch.randn(5, dtype=torch.complex64)),
        (aten.maximum.default, torch.randn(5), torch.randn(5)),
        (aten.max.other, torch.randn(5), torch.randn(5)),
        (aten.addmm.default, *(torch.randn(3, 3) for _ in "123")),
        (aten.max.dim, torch.randn(5, 2), 0),
    ],
)
def test_what_has_no_total(arguments: Arguments) -> None:
    """Of a product, the sum may be scaled."""
    program, _ = program_of(arguments)
    op = program.ops[0]
    assert isinstance(op, Op)
    if op.key == "aten.addmm":
        op.kwargs["beta"] = 2
    assert not found_for(program)
