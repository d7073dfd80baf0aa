"""C++ of the tests' own, compiled when they run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """One for all workers of a session."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def compiled(
    library: Path, folder: Path, sources: Sequence[Path], flags: Sequence[str] = ()
) -> Path:
    """Make the shared `library` of C++20 sources; skips where there is no compiler.

    folder: where what is compiled of each source is kept, for all that have the same.
    flags: a -D counts for the sources that name it.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("the test needs a C++ compiler, and there is none")
    common = (compiler, "-std=c++20", "-O1", "-fPIC", "-pthread", "-fvisibility=hidden")
    objects = []
    for source in sources:
        text = source.read_text(encoding="utf-8")
        own = [
            flag
            for flag in flags
            if flag[:2] != "-D" or flag[2:].partition("=")[0] in text
        ]
        name = hashlib.sha256(f"{own} {source}".encode()).hexdigest()
        objects.append(folder / f"{name}.o")
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not objects[-1].exists():
                words = (*common, *own, "-Wall", "-Wextra", "-c", source, "-o")
                made = folder / f"{name}.part"
                subprocess.run([*words, made], check=True)
                made.rename(objects[-1])
    subprocess.run([*common, "-shared", *objects, "-o", library], check=True)
    return library
