"""Losses of classes, written as a sum of one loss for each target."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from memplan.chunking.canonical import with_losses  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.graph.check import relative_error, tolerance_of  # noqa: E402
from memplan.graph.infer import Inference, meta_of  # noqa: E402
from memplan.graph.program import Op, Program, Ref  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
aten = torch.ops.aten
NONE, MEAN, SUM = range(3)
IGNORED = -100
CLASSES = 5
TARGETS = {"rows": (12,), "reshaped": (12,), "columns": (3, 4), "plane": (2, 3, 2)}


def call(target: Any, *args: Any, **options: Any) -> tuple[Program, list[Any]]:
    """A program of one operator, and its inputs; scores of three dimensions are made
    rows first."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    program = Program([f"x{i}" for i in range(len(tensors))], {}, [], None, {}, {})
    inference = Inference()
    names = iter(program.inputs)
    given = [
        Ref(next(names)) if isinstance(each, torch.Tensor) else each for each in args
    ]
    for name, tensor in zip(program.inputs, tensors, strict=True):
        program.metas[name], program.roots[name] = meta_of(tensor), name
    if options.pop("reshaped", False):
        shape = [-1, tensors[0].shape[-1]]
        program.ops.append(Op("rows", aten.reshape.default, (given[0], shape)))
        given[0] = Ref("rows")
    program.ops.append(Op("loss", target, tuple(given), options))
    for op in program.ops:
        assert isinstance(op, Op)
        inference.add(program, op)
    program.outputs = (Ref("loss"),)
    return program, tensors


def ran(program: Program, tensors: list[Any]) -> Any:
    return compiled(source(program, "loss"), "loss")(tensors, {})[0]


def targets(generator: Any, shape: tuple[int, ...], ignored: float, at: int) -> Any:
    made = torch.randint(0, CLASSES, shape, generator=generator)
    return made.masked_fill(torch.rand(shape, generator=generator) < ignored, at)


@examples(
    60,
    st.sampled_from(sorted(TARGETS)),
    st.sampled_from([NONE, MEAN, SUM]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([IGNORED, 2, -1]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
    soak=2000,
)
def test_losses_are_the_same(
    kind: str,
    reduction: int,
    dtype: Any,
    ignored: float,
    at: int,
    weighted: bool,
    softmax: bool,
    seed: int,
) -> None:
    """All targets may be ignored: the mean of none is not a number."""
    generator = torch.Generator().manual_seed(seed)
    shape = TARGETS[kind]
    scores = torch.randn(shape[0], CLASSES, *shape[1:], generator=generator)
    if kind == "reshaped":
        scores = scores.reshape(3, 4, CLASSES)
    if seed % 5 == 0:
        scores.view(-1)[seed % 60] = float("nan" if seed % 2 else "-inf")
    scores = scores.to(dtype)
    target = targets(generator, shape, ignored, at)
    weight = torch.rand(CLASSES, generator=generator).to(dtype) if weighted else None
    loss = aten.cross_entropy_loss.default if softmax else aten.nll_loss_nd.default
    options = {
        "reduction": reduction,
        "ignore_index": at,
        "reshaped": kind == "reshaped",
    }
    program, tensors = call(loss, scores, target, weight, **options)
    apart = with_losses(program, Inference())
    assert loss not in [op.target for op in apart.ops if isinstance(op, Op)]
    expected, found = ran(program, tensors), ran(apart, tensors)
    # The terms are about 1, and may cancel.
    assert relative_error([expected], [found], [1.0]) <= tolerance_of([expected])


def test_targets_run_in_slices() -> None:
    """Rows of a reshape are sliced as they were before it."""
    scores, target = torch.randn(3, 7, CLASSES), torch.randint(0, CLASSES, (21,))
    target[::4] = IGNORED
    options = {"reduction": MEAN, "reshaped": True}
    program, tensors = call(
        aten.cross_entropy_loss.default, scores, target, None, **options
    )
    apart = with_losses(program, Inference())
    names = [op.name for op in apart.ops if isinstance(op, Op) and op.key != "aten.sum"]
    inner = names[names.index("loss_part_2") : names.index("loss_part_9")]
    region = Region(dict.fromkeys(inner, Slice(1)), 7, 3)
    looped = chunked(apart, region, Inference())
    expected, found = ran(program, tensors), ran(looped, tensors)
    assert relative_error([expected], [found]) <= 1e-6


def test_a_wrong_target_is_an_error_as_before() -> None:
    scores, target = torch.randn(4, CLASSES), torch.tensor([0, 1, CLASSES, 2])
    program, tensors = call(aten.cross_entropy_loss.default, scores, target)
    for each in (program, with_losses(program, Inference())):
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            ran(each, tensors)


@pytest.mark.parametrize(
    ("scores", "target", "options"),
    [
        (torch.randn(CLASSES), torch.tensor(2), {}),
        (torch.randn(4, CLASSES), torch.rand(4, CLASSES), {}),
        (torch.randn(4, CLASSES), torch.arange(4), {"label_smoothing": 0.1}),
        (torch.randn(0, CLASSES), torch.arange(0), {}),
    ],
)
def test_other_losses_stay(scores: Any, target: Any, options: dict[str, Any]) -> None:
    program, _ = call(aten.cross_entropy_loss.default, scores, target, **options)
    assert with_losses(program, Inference()).ops == program.ops


def test_two_losses_have_names_of_their_own() -> None:
    """An export numbers operators of one kind."""
    scores, target = torch.randn(4, CLASSES), torch.arange(4)
    program, tensors = call(aten.cross_entropy_loss.default, scores, target)
    first = program.ops[0]
    assert isinstance(first, Op)
    inference = Inference()
    other = Op("loss_1", first.target, first.args, {"reduction": SUM})
    both = Op("both", aten.sub.Tensor, (Ref("loss_1"), Ref("loss")))
    for op in (other, both):
        inference.add(program, op)
        program.ops.append(op)
    program.outputs = (Ref("both"),)
    found = ran(with_losses(program, inference), tensors)
    assert relative_error([ran(program, tensors)], [found]) <= 1e-6
