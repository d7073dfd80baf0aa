"""The kernels that the package is built with, and what stands in for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from convolving import convolve

from memplan.errors import UsageError
from memplan.fusing import kernels as prebuilt
from memplan.fusing.convolution import Geometry, pack
from memplan.fusing.kernels import convolution_library, headers, tape
from memplan.toolchain.compiler import find_compiler

torch = pytest.importorskip("torch")

HEADERS = {**headers("conv_"), **headers("tape")}
NARROW = "portable"  # on every machine
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        prebuilt.package_library(NARROW, HEADERS) is None,
        reason="the package was built without kernels",
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are looked for instead."""
    monkeypatch.setattr(prebuilt, "folders", lambda: (tmp_path / "none", tmp_path))
    return tmp_path


def copied(folder: Path) -> Path:
    for each in prebuilt.folders():
        for path in each.glob(f"libmemplan_kernels_{NARROW}*"):
            return Path(shutil.copy(path, folder))
    raise AssertionError("it was there")


def test_the_widest_that_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    for has, wide in (({"avx512", "avx2"}, "avx512"), ({"avx2"}, "avx2"), (set(), "")):
        asked.clear()
        monkeypatch.setattr(prebuilt, "supported", lambda name, has=has: name in has)
        monkeypatch.setattr(prebuilt, "read_bytes", lambda p: asked.append(p) or b"")
        assert prebuilt.package_library("native", HEADERS) is None
        assert all(path.name == f"libmemplan_kernels_{wide}.so" for path in asked)
        assert prebuilt.package_library("avx512", HEADERS) is None


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match="not one of"):
        prebuilt.package_library("sse9", HEADERS)


def test_a_library_of_other_headers_is_not_loaded() -> None:
    name = next(iter(HEADERS))
    for other in (
        {**HEADERS, name: HEADERS[name] + " "},
        {**HEADERS, "new.h": ""},
        {key: text for key, text in HEADERS.items() if key != name},
    ):
        assert prebuilt.package_library(NARROW, other) is None


def test_a_library_that_is_damaged_or_missing(folder: Path) -> None:
    assert prebuilt.package_library(NARROW, HEADERS) is None
    path = folder / f"libmemplan_kernels_{NARROW}.so"
    path.mkdir()
    assert prebuilt.package_library(NARROW, HEADERS) is None
    path.rmdir()
    for text in (b"", b"nothing of the kind"):
        path.write_bytes(text)
        assert prebuilt.package_library(NARROW, HEADERS) is None


def test_one_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(b"#!" + whole[2:])
    monkeypatch.setattr(prebuilt, "folders", lambda: (tmp_path,))
    assert prebuilt.package_library(NARROW, HEADERS) is None


def test_a_narrow_library_where_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path)
    monkeypatch.setattr(prebuilt, "folders", lambda: (tmp_path,))
    monkeypatch.setattr(prebuilt, "supported", lambda name: name == NARROW)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library = convolution_library()
    assert Path(library._name).parent == tmp_path
    tape()


@pytest.mark.soak
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_compiled_here_they_compute_the_same(
    kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = Geometry(19, 37, (3, 3), padding=(1, 1))
    x = torch.randn(2, 19, 9, 11).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(37, 19, 3, 3), torch.randn(37)
    algorithms = ("direct", "winograd2", "winograd4")
    found = [convolve(x, pack(weight, bias, geometry, each)) for each in algorithms]
    monkeypatch.setattr(prebuilt, "folders", lambda: ())
    monkeypatch.setenv("HOME", str(kernel_cache))  # looked into anew
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    for each, theirs in zip(algorithms, found, strict=True):
        mine = convolve(x, pack(weight, bias, geometry, each))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-3)
