"""Kernels compiled for a GPU, through NVRTC, or where that is missing by nvcc."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.fusing.collapse import collapse
from memplan.fusing.cuda import gpu as looking
from memplan.fusing.cuda.emit import emit
from memplan.fusing.cuda.form import Form, Kernel, headers
from memplan.fusing.cuda.gpu import Nvrtc, cubin, find_nvrtc
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.patches import Device
from memplan.toolchain.cache import Cache
from memplan.toolchain.compiler import CompileError
from tests.fusing.cuda_stacks import NUMBERS, random_operations

LIMIT = 57 << 10
Compile = Callable[[Kernel], bytes]


@pytest.fixture(scope="module")
def for_hopper(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a kernel for sm_90; skips where nothing does."""
    found, nvcc = find_nvrtc(), shutil.which("nvcc")
    if found is not None:
        return lambda kernel: found.compile(kernel.source, headers(), "sm_90")
    if nvcc is None:
        pytest.skip("the test needs NVRTC or nvcc, and there is neither")
    folder = tmp_path_factory.mktemp("nvcc")

    def by_nvcc(kernel: Kernel) -> bytes:
        for name, text in headers().items():
            (folder / name).write_text(text)
        (folder / "stack.cu").write_text(kernel.source)
        command = [nvcc, "-std=c++17", "-arch=sm_90", "-cubin", "stack.cu"]
        subprocess.run(command, cwd=folder, check=True)
        return (folder / "stack.cubin").read_bytes()

    return by_nvcc


def kernels(
    operations: Sequence[Operation], form: Form, limit: int = LIMIT
) -> list[Kernel]:
    """Those of all sequences of a stack."""
    plane, found = (form.height, form.width), []
    stack = collapse(operations, plane, Device(limit, form.lanes, 4.0))
    for sequence in stack.sequences:
        each = [one for step in sequence.steps for one in step.operations]
        at = Form(form.dtype, form.channels, *plane, form.channels_last)
        found.append(emit(each, at, sequence.patch, limit))
        plane = found[-1].out
    return found


def paper_stack(count: int) -> list[Operation]:
    pool = Operation("pool", pool=Pool("max", (3, 3), (1, 1), (1, 1)))
    return [pool, Operation("affine"), Operation("relu")] * count


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_paper_s_stack_compiles(
    for_hopper: Compile, dtype: str, channels_last: bool
) -> None:
    form = Form(dtype, 64, 56, 56, channels_last)
    for kernel in kernels(paper_stack(3), form)[:2]:
        assert for_hopper(kernel).startswith(b"\x7fELF")


def test_all_operations_compile(for_hopper: Compile) -> None:
    operations = [Operation(kind, NUMBERS.get(kind, ())) for kind in OPERATORS]
    (kernel,) = kernels(operations, Form("float16", 64, 14, 14))
    assert for_hopper(kernel).startswith(b"\x7fELF")


@pytest.mark.parametrize("seed", range(4))
def test_random_stacks_compile(for_hopper: Compile, seed: int) -> None:
    chance = random.Random(seed)
    operations = random_operations(chance, 40, 31, 3)
    for kernel in kernels(operations, Form("float32", 8, 40, 31, seed % 2 == 1)):
        assert for_hopper(kernel).startswith(b"\x7fELF")


def test_steps_that_are_alike_are_written_once() -> None:
    form = Form("float32", 64, 56, 56)
    few, many = (kernels(paper_stack(count), form) for count in (3, 40))
    assert len(few) == len(many) == 1
    assert many[0].source.count("PHASE void") == few[0].source.count("PHASE void") == 3


def test_a_whole_plane_that_fits_has_no_halo() -> None:
    (kernel,) = kernels(paper_stack(40), Form("float32", 64, 56, 56))
    assert kernel.items == 1
    assert kernel.shared == 2 * 4 * 58 * 58


@pytest.fixture
def nvrtc() -> Nvrtc:
    found = find_nvrtc()
    if found is None:
        pytest.skip("the test needs NVRTC, and it is not there")
    return found


def test_cubins_are_kept(nvrtc: Nvrtc, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (kernel,) = kernels(paper_stack(1), Form("float32", 8, 4, 4))
    first = cubin(nvrtc, kernel.source, headers(), "sm_90", cache)
    (kept,) = cache.folder.iterdir()

    class Never(Nvrtc):
        def __init__(self) -> None:
            self.version = nvrtc.version

        def compile(self, *arguments: object) -> bytes:
            raise AssertionError("it is compiled again")

    assert cubin(Never(), kernel.source, headers(), "sm_90", cache) == first
    kept.write_bytes(b"damaged")
    assert cubin(nvrtc, kernel.source, headers(), "sm_90", cache) == first
    cubin(nvrtc, kernel.source, headers(), "sm_75", cache)
    assert len(list(cache.folder.iterdir())) == 2


def test_what_the_compiler_refuses(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"stack\.cu\(1\): error:") as failed:
        nvrtc.compile("nothing", {}, "sm_90")
    assert len(str(failed.value).splitlines()) == 1
    with pytest.raises(CompileError, match="arch"):
        nvrtc.compile("", {}, "sm_1")


def test_where_nvrtc_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(path: str) -> object:
        asked.append(path)
        if not path.startswith(str(tmp_path)):
            raise OSError(path)
        return object()  # a library without the functions

    (tmp_path / "lib64").mkdir()
    for name in ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.11.2"):
        (tmp_path / "lib64" / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(looking.ctypes, "CDLL", load)
    assert find_nvrtc.__wrapped__(12) is None
    own = [Path(path).name for path in asked if path.startswith(str(tmp_path))]
    assert own[:2] == ["libnvrtc.so.12", "libnvrtc.so.13"]
    assert "libnvrtc.so.11.2" in own
    assert asked[0] == "libnvrtc.so.12"


@settings(max_examples=200)
@given(seed=st.integers(0, 1 << 30))
def test_blocks_stay_within_their_limit(seed: int) -> None:
    chance = random.Random(seed)
    size = (chance.randint(1, 90), chance.randint(1, 90))
    operations = random_operations(chance, *size, chance.randint(2, 6))
    form = Form("float32", 64, *size, chance.random() < 0.5)
    limit = chance.choice([1 << 10, 4 << 10, 16 << 10, 57 << 10])
    for kernel in kernels(operations, form, limit):
        one_point = kernel.items == kernel.out[0] * kernel.out[1]
        assert kernel.shared <= limit or one_point
