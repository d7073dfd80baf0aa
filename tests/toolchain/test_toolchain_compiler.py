"""Which compiler is found, and what becomes of one that fails."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from memplan.toolchain.compiler import (
    CompileError,
    Compiler,
    compile_source,
    find_compiler,
)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of $PATH, with no $CXX."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_there_is_none(folder: Path) -> None:
    assert find_compiler() is None


def test_the_order_of_names(folder: Path) -> None:
    for name in ("clang++", "g++", "c++"):
        path = script(folder / name, f"echo {name} version 1")
        assert find_compiler() == Compiler(str(path), f"{name} version 1\n")


def test_cxx_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(folder / "c++", "echo usual")
    mine = script(folder / "mine", "echo mine $1")
    monkeypatch.setenv("CXX", "mine --wrapped")
    assert find_compiler() == Compiler(str(mine), "mine --wrapped\n", ("--wrapped",))
    monkeypatch.setenv("CXX", str(mine))
    assert find_compiler() == Compiler(str(mine), "mine --version\n")


@pytest.mark.parametrize("named", ["", "absent", "failing", "silent", 'un"closed'])
def test_what_is_no_compiler_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    script(folder / "failing", "echo broken; exit 1")
    script(folder / "silent", "exit 0")
    usual = script(folder / "c++", "echo usual")
    monkeypatch.setenv("CXX", named)
    assert find_compiler() == Compiler(str(usual), "usual\n")


def test_it_is_asked_once_until_it_changes(folder: Path) -> None:
    path = script(folder / "c++", f"echo asked >> {folder}/log; echo 1")
    for _ in range(3):
        find_compiler()
    assert (folder / "log").read_text() == "asked\n"
    script(path, "echo 2")
    os.utime(path, ns=(1, 1))
    found = find_compiler()
    assert found is not None
    assert found.version == "2\n"


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("echo 'a.cpp:1: error: first' >&2; echo 'error: second' >&2; exit 1", "first"),
        ("echo warning >&2; echo 'ld: no such thing' >&2; exit 1", "ld: no such thing"),
        ("echo 'told on stdout'; exit 1", "told on stdout"),
        ("exit 7", "exit code 7"),
        ("kill -9 $$", "signal 9"),
    ],
)
def test_one_line_says_why_it_failed(tmp_path: Path, does: str, says: str) -> None:
    compiler = Compiler(str(script(tmp_path / "c++", does)), "")
    with pytest.raises(CompileError, match=says) as failed:
        compile_source(compiler, [], tmp_path)
    assert len(str(failed.value).splitlines()) == 1
    assert "second" not in str(failed.value)


def test_one_that_has_gone_fails(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="cannot be started"):
        compile_source(Compiler(str(tmp_path / "gone"), ""), [], tmp_path)


@pytest.mark.skipif(shutil.which("sleep") is None, reason="the test needs sleep")
def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    # The sleeper holds the pipes open: ending the shell alone would not do.
    hangs = script(tmp_path / "c++", "sleep 300 & echo $! > child; wait")
    with pytest.raises(CompileError, match=r"still compiling after 0\.5 s"):
        compile_source(Compiler(str(hangs), ""), [], tmp_path, timeout=0.5)
    child = int((tmp_path / "child").read_text())
    for _ in range(500):
        if not alive(child):
            return
        time.sleep(0.01)
    pytest.fail("what the compiler started is still there")


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
