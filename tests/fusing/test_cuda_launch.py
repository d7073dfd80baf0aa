"""Launches as the driver gets them, on a stand-in for libcuda; and what a GPU is
asked for, on a stand-in for torch's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.cuda import gpu as gpus
from memplan.fusing.cuda.emit import emit
from memplan.fusing.cuda.form import Form
from memplan.fusing.cuda.gpu import Driver, Gpu, NoNvrtcError
from memplan.fusing.operators import Operation
from memplan.toolchain.cache import Cache
from tests.compiled import compiled

SOURCE = Path(__file__).parent / "fake_driver.cpp"


class Noted(ctypes.Structure):
    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("pointers", ctypes.c_void_p * 3),
        ("numbers", ctypes.c_int * 3),
        ("shared_asked", ctypes.c_int),
        ("name", ctypes.c_char * 32),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver") / "libcuda.so", SOURCE)


@pytest.fixture
def library(built: Path) -> Iterator[ctypes.CDLL]:
    found = ctypes.CDLL(str(built))
    Noted.in_dll(found, "noted").shared_asked = 0
    yield found
    ctypes.c_int.in_dll(found, "fails").value = 0


def test_a_launch(library: ctypes.CDLL) -> None:
    function = Driver(library).load(b"cubin", 20_000)
    function.launch(70_000, (1 << 40, 7, 0), (-3, 2, 1 << 30), 1 << 41)
    noted = Noted.in_dll(library, "noted")
    assert noted.name == b"stack"
    assert list(noted.sizes) == [70_000, 1, 1, 128, 1, 1, 20_000]
    assert noted.stream == 1 << 41
    assert list(noted.pointers) == [1 << 40, 7, None]
    assert list(noted.numbers) == [-3, 2, 1 << 30]
    assert noted.shared_asked == 0


def test_much_shared_memory_is_asked_for(library: ctypes.CDLL) -> None:
    Driver(library).load(b"cubin", 100_000)
    assert Noted.in_dll(library, "noted").shared_asked == 100_000


def test_what_the_driver_refuses(library: ctypes.CDLL) -> None:
    driver = Driver(library)
    with pytest.raises(EnvironmentUnfitError, match=r"LoadData \(.*INVALID_IMAGE"):
        driver.load(b"other", 0)
    function = driver.load(b"cubin", 0)
    ctypes.c_int.in_dll(library, "fails").value = 719
    with pytest.raises(EnvironmentUnfitError, match=r"cuLaunchKernel \(error 719\)"):
        function.launch(1, (0, 0, 0), (0, 0, 0))


def test_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(EnvironmentUnfitError, match="there is no CUDA driver"):
        Driver()


torch = pytest.importorskip("torch")


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch that has one H100, as far as `Gpu` looks."""
    properties = SimpleNamespace(
        major=9,
        minor=0,
        shared_memory_per_block_optin=232_448,
        shared_memory_per_multiprocessor=233_472,
    )
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: properties,
        device=lambda index: contextlib.nullcontext(),
        current_stream=lambda: SimpleNamespace(cuda_stream=1234),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return properties


@pytest.mark.torch
def test_a_kernel_is_made_ready(
    fake_torch: SimpleNamespace,
    library: ctypes.CDLL,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Nvrtc:
        version = (13, 0)

        def compile(self, source: str, headers: object, architecture: str) -> bytes:
            asked.append(architecture)
            return b"cubin"

    monkeypatch.setattr(gpus, "find_nvrtc", lambda major: Nvrtc())
    monkeypatch.setattr(gpus, "Driver", lambda: Driver(library))
    kernel = emit([Operation("add")], Form("float32", 4, 8, 8), (8, 8), 1 << 14)
    for _ in range(2):  # the second time from the cache
        gpu = Gpu(cache=Cache(tmp_path / "cache"))
        gpu.ready(kernel)(kernel.blocks(3, 4), (1, 2, 3), (3, 4, 64))
    assert asked == ["sm_90"]
    noted = Noted.in_dll(library, "noted")
    assert noted.stream == 1234
    assert noted.sizes[0] == -(-3 * 4 * 64 // (4 * 128))
    assert list(noted.numbers) == [3, 4, 64]


@pytest.mark.torch
def test_what_a_gpu_gives_a_block(fake_torch: SimpleNamespace) -> None:
    gpu = Gpu()
    assert (gpu.device, gpu.architecture) == ("cuda:0", "sm_90")
    assert (gpu.limit, gpu.most) == (233_472 // 4, 232_448)
    del fake_torch.shared_memory_per_block_optin
    assert Gpu().limit == 48 << 10


@pytest.mark.torch
def test_where_there_is_no_nvrtc(
    fake_torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "find_nvrtc", lambda major: None)
    kernel = emit([Operation("relu")], Form("float32", 4, 8, 8), (8, 8), 1 << 14)
    with pytest.raises(NoNvrtcError, match="pip install nvidia-cuda-nvrtc"):
        Gpu().ready(kernel)
    with pytest.raises(EnvironmentUnfitError, match="no CUDA device 3"):
        Gpu(3)


@pytest.mark.torch
def test_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(EnvironmentUnfitError, match="finds no NVIDIA GPU"):
        Gpu()
