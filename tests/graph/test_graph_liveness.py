"""Live bytes against a plain reference, on programs made at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memplan.chunking.curve import at_peak, curve, live_at  # noqa: E402
from memplan.graph.infer import Inference, meta_of  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.program import Op, Program, Ref, refs  # noqa: E402
from memplan.graph.workspace import temporaries  # noqa: E402
from tests.strategies import examples  # noqa: E402

aten = torch.ops.aten
INFERENCE = Inference()
# Each with how many tensors it takes and what else; the last two are views.
OPERATORS: list[tuple[Any, int, tuple[Any, ...]]] = [
    (aten.add.Tensor, 2, ()),
    (aten.mm.default, 2, ()),
    (aten.relu.default, 1, ()),
    (aten.softmax.int, 1, (-1,)),
    (aten.cat.default, 0, ()),
    (aten.transpose.int, 1, (0, 1)),
    (aten.select.int, 1, (0, 1)),
]


def program_of(inputs: int) -> Program:
    program = Program([], {}, [], None, {}, {})
    for i in range(inputs):
        name = f"x{i}"
        program.inputs.append(name)
        program.metas[name] = meta_of(torch.empty(4, 4))
        program.roots[name] = name
    return program


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program = program_of(2)
    names = list(program.inputs)
    for i in range(draw(st.integers(1, 12))):
        target, count, rest = draw(st.sampled_from(OPERATORS))
        square = [name for name in names if program.metas[name].shape == (4, 4)]
        taken = draw(st.lists(st.sampled_from(square), min_size=2, max_size=2))
        args: tuple[Any, ...] = tuple(map(Ref, taken))[:count] + rest
        if target is aten.cat.default:
            args = ([Ref(name) for name in taken],)
        op = Op(f"v{i}", target, args, {}, f"model.py:{i}")
        INFERENCE.add(program, op)
        program.ops.append(op)
        names.append(op.name)
    given_out = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
    program.outputs = tuple(map(Ref, given_out))
    return program


def storage(program: Program, name: str) -> str:
    """The value whose memory `name` lies in, by following views."""
    root = program.roots[name]
    assert isinstance(root, str)
    return root


def without_reuse(program: Program) -> list[int]:
    """Live bytes at each operator, where nothing is written over an operand: a storage
    is there from the operator that makes it to the last that reads anything in it."""
    live = []
    for at in range(len(program.ops)):
        total = temporaries(program, program.ops[at])
        for i, op in enumerate(program.ops[: at + 1]):
            if storage(program, op.name) != op.name:
                continue
            readers = [
                j
                for j, other in enumerate(program.ops)
                if any(storage(program, name) == op.name for name in other.operands())
                or storage(program, other.name) == op.name
            ]
            out = any(storage(program, n) == op.name for n in refs(program.outputs))
            if out or max([i, *readers]) >= at:
                total += program.metas[op.name].bytes
        live.append(total)
    return live


@examples(40, programs(), soak=150)
def test_live_bytes_are_those_of_a_plain_count(program: Program) -> None:
    plain = without_reuse(program)
    found = profile(program)
    # What is written over an operand takes nothing; else the two are the same.
    assert all(ours <= theirs for ours, theirs in zip(found.live, plain, strict=True))
    own = {"aten.relu", "aten.add", "aten.softmax"}
    if not any(op.key in own for op in program.ops):
        assert found.live == plain
    assert found.peak == max(found.live)
    assert found.live[found.at] == found.peak


@examples(40, programs(), soak=100)
def test_what_is_live_adds_up(program: Program) -> None:
    found = profile(program)
    for at, live in enumerate(found.live):
        own = temporaries(program, program.ops[at])
        assert sum(count for _, count in live_at(program, at)) + own == live
    assert at_peak(program)["line"] == f"model.py:{found.at}"
    # Without loops a curve is of what eager modules do: no result lies over another.
    eager, drawn = profile(program, overwriting=False), curve(program)
    assert list(drawn.live) == eager.live
    assert drawn.bands == ()
    assert drawn.at == eager.at


@examples(40, programs(), soak=100)
def test_the_live_bytes_are_those_of_a_run(program: Program) -> None:
    """The allocator agrees, where the program is run as it is estimated."""
    from memplan.chunking.code import compiled, source
    from memplan.graph.measure import activation_peak

    run = compiled(source(program, "random"), "random")
    inputs = [torch.ones(4, 4) for _ in program.inputs]
    assert activation_peak(lambda: run(inputs, {})) <= profile(program).peak


def test_an_empty_program() -> None:
    program = program_of(1)
    program.outputs = (Ref("x0"),)
    assert profile(program).peak == 0
    assert at_peak(program) == {}
