"""C++ of the tests' own, compiled when they run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(library: Path, *arguments: str | Path) -> Path:
    """Make the shared `library` of C++20 sources; skips where there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("the test needs a C++ compiler, and there is none")
    subprocess.run(
        [
            *(compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread"),
            *("-fvisibility=hidden", "-Wall", "-Wextra", "-o", str(library)),
            *map(str, arguments),
        ],
        check=True,
    )
    return library
