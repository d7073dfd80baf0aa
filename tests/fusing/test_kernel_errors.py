"""What kernels refuse, and what stacks do where nothing can be compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_stacks import CPU

from memplan.errors import UsageError
from memplan.fusing.collapse import collapse
from memplan.fusing.kernel import Kernel, compiled
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.reference import reference
from memplan.toolchain.compiler import CompileError, find_compiler

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

POOL = Operation("pool", pool=Pool("max", (2, 2), (2, 2)))
STACK = collapse([Operation("affine"), POOL, Operation("add")], (8, 8), CPU)


@pytest.fixture(scope="module")
def kernel(kernel_cache: Path) -> Kernel:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    return compiled(STACK, "float32", "channels_first")


def good() -> dict[str, Any]:
    channel = torch.ones(3)
    return {
        "x": torch.zeros(2, 3, 8, 8),
        "operands": [channel, channel, torch.zeros(2, 3, 4, 4)],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 8, 8)}, r"takes \(n, c, h, w\)"),
        ({"x": torch.zeros(2, 3, 8, 8, dtype=torch.float64)}, "takes float32"),
        ({"x": torch.zeros(2, 3, 8, 8, device="meta")}, "runs on the CPU"),
        ({"x": torch.zeros(2, 3, 1, 8)}, "nothing comes out"),
        ({"x": torch.zeros(2, 4, 8, 8)}, "expected"),
        ({"operands": []}, "takes 3 operands"),
        ({"out": torch.zeros(2, 3, 4, 5)}, "the output is"),
        ({"out": torch.zeros(2, 3, 4, 4).bfloat16()}, "the output is"),
        ({"out": torch.zeros(2, 3, 4, 8)[..., ::2]}, "not channels_first in memory"),
        ({"out": torch.zeros(1, 3, 4, 4).expand(2, -1, -1, -1)}, "share memory"),
    ],
)
def test_tensors_that_do_not_fit(
    kernel: Kernel, change: dict[str, Any], message: str
) -> None:
    kernel.run(**good())
    with pytest.raises(UsageError, match=message):
        kernel.run(**{**good(), **change})


def test_operands_that_do_not_fit(kernel: Kernel) -> None:
    for at, bad in ((0, torch.ones(4)), (1, torch.ones(3).double()),
                    (2, torch.zeros(2, 3, 8, 8))):  # fmt: skip
        arguments = good()
        arguments["operands"][at] = bad
        with pytest.raises(UsageError, match="expected"):
            kernel.run(**arguments)


def test_the_reference_takes_as_many_operands() -> None:
    with pytest.raises(UsageError, match="takes 3 operands"):
        reference(STACK, good()["x"])


def test_room_between_sequences() -> None:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    stack = collapse([POOL, POOL], (8, 8), CPU, 1)
    kernel = compiled(stack, "float32", "channels_first")
    x = torch.rand(2, 3, 8, 8)
    needed = kernel.between_bytes(x.shape)
    assert needed >= 2 * 3 * 4 * 4 * 4
    out = torch.empty(2, 3, 2, 2)
    room = torch.empty(needed, dtype=torch.uint8)
    kernel.bind(x, [], out, room)(1)
    assert torch.equal(out, reference(stack, x))
    with pytest.raises(UsageError, match="bytes between"):
        kernel.bind(x, [], out, room[:-1])


def test_kernels_that_there_are_not() -> None:
    for dtype, layout in (("float16", "channels_first"), ("float32", "rows")):
        with pytest.raises(UsageError, match="no kernels"):
            compiled(STACK, dtype, layout)


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\nexit 3\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "cache"))
    stack = collapse([Operation("mul_number", (0.123,)), POOL], (8, 8), CPU)
    with pytest.raises(CompileError):
        compiled(stack, "float32", "channels_first")
