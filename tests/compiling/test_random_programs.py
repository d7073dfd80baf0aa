"""Programs made at random: the same results in an arena as without one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, reject
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memplan.chunking.around import with_step  # noqa: E402
from memplan.chunking.candidates import Landscape, ends, sweep  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.region import (  # noqa: E402
    NotLoopableError,
    Region,
    RegionError,
    chunked,
)
from memplan.compiling.schedule import Choices, scheduled  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.fusing.options import KERNELS  # noqa: E402
from memplan.graph.export import DataDependentError, export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Program, mapped  # noqa: E402
from memplan.graph.script import NoTapeError  # noqa: E402
from memplan.graph.weights import Weights  # noqa: E402
from tests.compiling.random_models import (  # noqa: E402
    SHAPE,
    Made,
    Model,
    coarsest,
    models,
)
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch

# Relative to the largest element: kernels of memplan's, and products in slices, round
# differently.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.03}
ROUNDINGS = 20  # runs in which eager PyTorch rounds differently, too
LOOPS = st.lists(st.tuples(*[st.integers(0, 99)] * 3), min_size=1, max_size=3)


def with_loops(
    program: Program, loops: tuple[tuple[int, int, int], ...], inference: Inference
) -> Program:
    """The program with some of its operators in loops, as the search would make them.

    loops: numbers that choose where each ends, what is in it, and its steps.
    """
    for end, part, step in loops:
        errors = Counter[str]()
        land = Landscape(program, errors)
        every = len(program.ops)
        places = [*ends(land, 0, every), *ends(land, 0, every, totals=True)]
        last, dim = places[end % len(places)] if places else (0, 0)
        found = list(sweep(land, last, dim, 0, bool(step % 2))) if places else []
        assert not errors
        if not found:
            continue
        one = found[part % len(found)]
        region = Region(one.slices, one.extent, 1, one.copied, granule=one.granule)
        sized = with_step(region, 1 + step % one.extent)
        if sized is None:
            continue
        try:
            sized = replace(sized, slides=bool(part % 2))
            program = chunked(program, sized, inference)
        except RegionError:
            raise
        except NotLoopableError:
            continue
    return program


def check(made: Made) -> None:
    torch.manual_seed(0)
    model = Model(made).eval()
    inputs = [torch.randn(SHAPE).to(made.dtype) for _ in "12"]
    inference = Inference()
    try:
        exported = export(model, (inputs[0],), {})
    except DataDependentError:  # as of sizes that a sample reads from its operand
        reject()
    program = lower(exported, inference)
    if made.loops:
        program = with_loops(searchable(program, inference), made.loops, inference)
    weights = Weights(model, exported.constants)
    constants = {name: weights[at].detach() for name, at in program.constants.items()}
    found = scheduled(program, constants, [inputs[0]], Choices(made.kernels))
    assert not verify(found.plan)
    try:
        tape = found.tape(torch.empty(found.bytes, dtype=torch.uint8))
    except NoTapeError as refusal:
        assert str(refusal) == "a view of another type"
        reject()
    exact = not made.loops and not made.kernels
    for x in inputs:
        before = x.clone()
        with torch.no_grad():
            expected = model(x)
            named = dict(zip(tape.results, tape([x]), strict=True))
        results = mapped(found.flat.program.outputs, lambda at, by=named: by[at.name])
        assert torch.equal(x, before)
        off = error(results, expected)
        tolerance = 0 if exact else TOLERANCES[coarsest(made)]
        if off > tolerance and not exact:
            assume(off > ROUNDINGS * rounding(model, x))
        assert off <= tolerance


def error(results: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element."""
    most = 0.0
    for one, other in zip(results, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one.isnan(), other.isnan())
        scale = other.double().nan_to_num().abs().max() + 1e-3
        off = (one.double() - other.double()).nan_to_num().abs().max()
        most = max(most, float(off / scale))
    return most


def rounding(model: Model, x: Any) -> float:
    """By how much eager results differ if each operator's result does in its last bits:
    where a comparison decides, by any amount."""
    with torch.no_grad():
        expected = [each.clone() for each in model(x)]
        model.rounding = torch.finfo(coarsest(model.made)).eps
        found = [error(model(x), expected) for _ in range(ROUNDINGS)]
        model.rounding = 0.0
    return max(found)


@examples(15, models(15), soak=500)
def test_random_programs(made: Made) -> None:
    check(made)


@examples(
    10,
    models(8, loops=LOOPS.map(tuple), kernels=st.sampled_from([(), KERNELS])),
    soak=500,
)
def test_random_programs_in_loops(made: Made) -> None:
    check(made)
