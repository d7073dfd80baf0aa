"""The kernels that the package is built with, and what stands in for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memplan.fusing import kernels as prebuilt
from memplan.fusing.kernels import convolution_library, headers, tape

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
