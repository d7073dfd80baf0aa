"""Libraries compiled, kept and loaded; each test has sources of its own, since what
a process has loaded it hands out again."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import memplan.files
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.toolchain import loading
from memplan.toolchain.cache import Cache
from memplan.toolchain.compiler import CompileError, NoCompilerError, find_compiler
from memplan.toolchain.instructions import supported
from memplan.toolchain.loading import load

pytestmark = pytest.mark.skipif(
    find_compiler() is None, reason="the tests need a C++ compiler"
)

ROOT = Path(__file__).parent.parent.parent
EXPORT = 'extern "C" __attribute__((visibility("default")))\n'
THREADS = (
    "#ifdef _OPENMP\n#include <omp.h>\n#endif\n"
    + EXPORT
    + """int threads() {
    int count = 0;
    #pragma omp parallel num_threads(2) reduction(+ : count)
    count += 1;
    return count;
}
"""
)
_numbers = itertools.count(os.getpid() * 1000)


def answer(number: int) -> str:
    return EXPORT + f"int answer() {{ return {number}; }}\n"


@pytest.fixture
def number() -> int:
    """One that no other source has."""
    return next(_numbers)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has loaded nothing yet."""
    monkeypatch.setattr(loading, "_loaded", {})
    yield


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one line for each time that the compiler compiled something."""
    compiler = find_compiler()
    assert compiler is not None
    log = tmp_path / "log"
    log.write_text("")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) ;; *) echo run >> "{log}";; esac\n'
        f'exec "{compiler.path}" "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return log


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_it_is_compiled_once(
    cache: Cache, number: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(answer(number), cache=cache)
    assert load(answer(number), cache=cache) is first
    assert lines(runs) == 1
    monkeypatch.setattr(loading, "_loaded", {})  # as in another process
    again = load(answer(number), cache=cache)
    assert again is not first
    assert again.answer() == number
    assert lines(runs) == 1


def test_threads_compile_it_once(cache: Cache, number: int, runs: Path) -> None:
    made: list[ctypes.CDLL] = []
    threads = [
        threading.Thread(target=lambda: made.append(load(answer(number), cache=cache)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1
    assert lines(runs) == 1


def test_processes_at_once_both_get_it_right(cache: Cache, number: int) -> None:
    program = (
        "import sys\nfrom memplan.toolchain.loading import load\n"
        "sys.stdin.readline()\nprint(load(sys.argv[1]).answer())\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MEMPLAN_CACHE_DIR": str(cache.folder),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, answer(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == [f"{number}\n"] * 3
    (kept,) = cache.folder.iterdir()
    assert cache.find(kept.stem, kept.suffix) == kept


@pytest.mark.usefixtures("forgetful")
def test_a_damaged_library_is_made_anew(
    cache: Cache, number: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(answer(number), cache=cache)
    (kept,) = cache.folder.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # what is loaded stays whole
    kept.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(loading, "_loaded", {})
    assert load(answer(number), cache=cache).answer() == number
    assert lines(runs) == 2
    assert cache.find(kept.stem, kept.suffix) == kept


def test_an_open_cache_is_refused(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    with pytest.raises(EnvironmentUnfitError, match="MEMPLAN_CACHE_DIR"):
        load(answer(number))


@pytest.mark.usefixtures("forgetful")
def test_another_cpu_does_not_get_it(
    cache: Cache, number: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(answer(number), cache=cache)
    load(answer(number), instructions="portable", cache=cache)
    monkeypatch.setattr(loading, "cpu", lambda: ("another",))
    load(answer(number), cache=cache)
    assert lines(runs) == 3
    load(answer(number), instructions="portable", cache=cache)
    assert lines(runs) == 3  # that one runs there, too


def test_a_source_that_is_wrong(cache: Cache) -> None:
    with pytest.raises(CompileError, match=r"source\.cpp:1:.*error:") as failed:
        load("int answer() { return nothing; }\n", cache=cache)
    assert "nothing" in str(failed.value)
    assert isinstance(failed.value, EnvironmentUnfitError)
    assert list(cache.folder.iterdir()) == []


def test_no_compiler(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompilerError, match="install g"):
        load(answer(1), cache=cache)


def test_a_compiler_without_openmp_makes_it_serial(
    cache: Cache, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = find_compiler()
    assert compiler is not None
    serial, asked = tmp_path / "serial", tmp_path / "asked"
    serial.write_text(
        "#!/bin/sh\n"
        'for each in "$@"; do\n'
        f'    [ "$each" = -fopenmp ] && echo "$@" >> "{asked}" && exit 1\n'
        f'done\nexec "{compiler.path}" "$@"\n'
    )
    serial.chmod(0o755)
    monkeypatch.setenv("CXX", str(serial))
    source = f"// {number}\n{THREADS}"
    assert load(source, cache=cache).threads() == 1
    before = asked.read_text()
    assert load(f"// again\n{source}", cache=cache).threads() == 1
    with pytest.raises(CompileError):
        load("wrong", cache=cache)
    assert asked.read_text() == before, "it was asked for OpenMP again"


@pytest.mark.torch
def test_it_shares_torch_s_threads(cache: Cache) -> None:
    pytest.importorskip("torch")
    program = (
        "import sys, torch\nfrom memplan.toolchain.loading import load\n"
        "load(sys.argv[1]).threads()\nprint(open('/proc/self/maps').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, THREADS],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MEMPLAN_CACHE_DIR": str(cache.folder),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    runtimes = set(re.findall(r"/\S*libgomp\S*", done.stdout))
    if any("libgomp-" in name for name in runtimes):
        pytest.skip("this torch has a runtime under a name of its own")
    assert len(runtimes) == 1


@pytest.mark.parametrize("name", ["", "../up.h", ".hidden", "a/b.h", "source.cpp"])
def test_names_of_headers(cache: Cache, name: str) -> None:
    with pytest.raises(UsageError, match="not a header's name"):
        load(answer(1), {name: ""}, cache=cache)


@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512", "native"])
def test_sets_of_instructions(cache: Cache, number: int, instructions: str) -> None:
    if not supported(instructions):
        with pytest.raises(EnvironmentUnfitError, match="this CPU does not run"):
            load(answer(number), instructions=instructions, cache=cache)
        return
    made = load(answer(number), instructions=instructions, cache=cache)
    assert made.answer() == number


def test_what_a_cpu_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not one of native, avx512"):
        supported("sse9")
    module = "memplan.toolchain.instructions.cpu_features"
    everything = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
    everything |= {f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")}
    monkeypatch.setattr(module, lambda: tuple(everything))
    assert supported("avx512")
    for missing in everything:
        left = tuple(feature for feature in everything if feature != missing)
        monkeypatch.setattr(module, lambda left=left: left)
        assert not supported("avx512")
        assert supported("avx2") == missing.startswith("avx512")
        assert supported("native")
        assert supported("portable")


def test_a_source_with_headers(cache: Cache, number: int) -> None:
    source = '#include "number.h"\n' + EXPORT + "int answer() { return NUMBER; }\n"
    for each in (number, number + 1):
        made = load(source, {"number.h": f"#define NUMBER {each}\n"}, cache=cache)
        assert made.answer() == each


@pytest.mark.usefixtures("forgetful")
def test_another_compiler_makes_its_own(
    cache: Cache, number: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(answer(number), cache=cache)
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -DOTHER")
    load(answer(number), cache=cache)
    assert lines(runs) == 2


def test_a_full_disk_does_not_matter(
    cache: Cache, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if Path(target).parent == cache.folder:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(memplan.files.os, "replace", full)
    assert load(answer(number), cache=cache).answer() == number
    assert list(cache.folder.iterdir()) == []
