"""What kernels refuse, and what stacks do where nothing can be compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_stacks import CPU

from memplan.errors import UsageError
from memplan.fusing.collapse import collapse
from memplan.fusing.kernel import Kernel, compiled_many
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
    return compiled_many([STACK], "float32", "channels_first")[0]


X, OUT, CHANNEL = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 4, 4), torch.ones(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 8, 8)}, r"takes \(n, c, h, w\)"),
        ({"x": X.double()}, "expected .2, 3, 8, 8. of torch.float32"),
        ({"x": X.to("meta")}, "on meta, expected .* on cpu"),
        ({"x": torch.zeros(2, 3, 1, 8)}, "nothing comes out"),
        ({"x": torch.zeros(2, 4, 8, 8)}, "expected"),
        ({"operands": []}, "takes 3 operands"),
        ({"operands": [torch.ones(4), CHANNEL, OUT]}, "operand channel"),
        ({"operands": [CHANNEL, CHANNEL.double(), OUT]}, "operand channel"),
        ({"operands": [CHANNEL, CHANNEL, X]}, "operand tensor"),
        ({"out": torch.zeros(2, 3, 4, 5)}, "the output is"),
        ({"out": OUT.bfloat16()}, "the output is"),
        ({"out": torch.zeros(2, 3, 4, 8)[..., ::2]}, "not channels_first in memory"),
        ({"out": torch.zeros(1, 3, 4, 4).expand(2, -1, -1, -1)}, "share memory"),
    ],
)
def test_tensors_that_do_not_fit(
    kernel: Kernel, change: dict[str, Any], message: str
) -> None:
    good = {"x": X, "operands": [CHANNEL, CHANNEL, OUT], "out": OUT}
    kernel.bind(**good)
    with pytest.raises(UsageError, match=message):
        kernel.bind(**{**good, **change})


def test_the_reference_takes_as_many_operands() -> None:
    with pytest.raises(UsageError, match="takes 3 operands"):
        reference(STACK, X)


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\nexit 3\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "cache"))
    stack = collapse([Operation("mul_number", (0.123,)), POOL], (8, 8), CPU)
    with pytest.raises(CompileError):
        compiled_many([stack], "float32", "channels_first")
