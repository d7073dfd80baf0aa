"""Large requests that go by torch's allocator, under `apply --malloc`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.applying.preload import large_requests, library_path
from memplan.errors import EnvironmentUnfitError
from tests.conftest import Run

# Every way to ask for memory and give it back, from four threads, with patterns that
# show a block that was given out twice; a fork in the middle; pages that go back.
ROUGH = """\
import ctypes
import json
import os
import random
import threading

libc = ctypes.CDLL(None)
names = "malloc calloc realloc reallocarray aligned_alloc memalign"
for name in names.split():
    getattr(libc, name).restype = ctypes.c_void_p
libc.malloc_usable_size.restype = ctypes.c_size_t
size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
wrong = []


def asked(rng, size):
    way = rng.randrange(6)
    if way == 0:
        return libc.malloc(size_t(size))
    if way == 1:
        found = libc.calloc(size_t(1), size_t(size))
        if any(ctypes.string_at(found + at, 1) != b"\\0" for at in places(size)):
            wrong.append("calloc is not zeroed")
        return found
    if way == 2:
        return libc.aligned_alloc(size_t(64), size_t(size // 64 * 64))
    if way == 3:
        return libc.memalign(size_t(4096), size_t(size))
    if way == 4:
        found = pointer()
        alignment = size_t(2 << 20)
        assert libc.posix_memalign(ctypes.byref(found), alignment, size_t(size)) == 0
        if found.value % (2 << 20):
            wrong.append("not aligned")
        return found.value
    return libc.reallocarray(None, size_t(1), size_t(size))


def places(size):
    return (0, size // 2, size // 64 * 64 - 1)


def write(block, size, mark):
    for at in places(size):
        ctypes.memset(block + at, mark, 1)


def check(block, size, mark):
    if any(ctypes.string_at(block + at, 1)[0] != mark for at in places(size)):
        wrong.append(f"{size} bytes at {block:x} are spoiled")


def work(seed):
    rng, live = random.Random(seed), []
    for turn in range(300):
        size = rng.choice((100, 5000, 200_000, 262_144, 300_001, 1 << 20, 3 << 20))
        block, mark = asked(rng, size), rng.randrange(1, 255)
        if libc.malloc_usable_size(pointer(block)) < size // 64 * 64:
            wrong.append("usable size")
        write(block, size, mark)
        live.append((block, size, mark))
        while len(live) > 8 or (live and rng.random() < 0.3):
            block, size, mark = live.pop(rng.randrange(len(live)))
            check(block, size, mark)
            if rng.random() < 0.3:  # grows or shrinks, and keeps what both hold
                new = rng.choice((64, size // 2, size + 1, 2 * size, 400_000))
                block = libc.realloc(pointer(block), size_t(new))
                if ctypes.string_at(block, 1)[0] != mark:
                    wrong.append("realloc lost what was there")
                size = new
            libc.free(pointer(block))
    for block, size, mark in live:
        check(block, size, mark)
        libc.free(pointer(block))


def all_threads():
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    return threads


threads = all_threads()
child = os.fork()
if child == 0:  # while the others are at it
    for thread in (again := all_threads()):
        thread.join()
    os._exit(len(wrong) > 0)
for thread in threads:
    thread.join()
wrong += ["the child's"] * (os.waitpid(child, 0)[1] != 0)
counts = (ctypes.c_uint64 * 5)()
libc.memplan_malloc_counts(counts)
print(json.dumps([wrong, list(counts)]))
"""


def preloaded(script: Path, *preload: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "LD_PRELOAD": ":".join(map(str, preload))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_block_is_ever_disturbed(tmp_path: Path) -> None:
    script = tmp_path / "rough.py"
    script.write_text(ROUGH)
    done = preloaded(script, library_path())
    assert done.returncode == 0, done.stderr
    wrong, (requests, live, most, kept, _) = json.loads(done.stdout)
    assert wrong == []
    assert requests > 300
    # What is kept for later is not more than was needed at the most.
    assert live + kept <= most


RESIDENT = """\
import ctypes
import json
import numpy as np


def resident():
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096


before, steps = resident(), []
for step in range(6):
    blocks = [np.ones(1 << 18) for _ in range(8)]  # 16 MiB together
    del blocks
    steps.append(resident() - before)
zeros = np.zeros(32 << 18)  # 64 MiB that nobody touches
print(json.dumps([steps, resident() - before, int(zeros[::512].sum())]))
"""


def test_pages_are_kept_for_the_next_block_and_zeros_cost_none(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    script = tmp_path / "resident.py"
    script.write_text(RESIDENT)
    done = preloaded(script, library_path())
    assert done.returncode == 0, done.stderr
    steps, untouched, total = json.loads(done.stdout)
    assert max(steps) < 20 << 20
    assert untouched < 20 << 20
    assert total == 0


def test_without_it_nothing_is_told() -> None:
    assert large_requests() is None


def test_a_memplan_built_without_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import memplan.native

    monkeypatch.setattr(memplan.native, "__path__", [str(tmp_path)])
    with pytest.raises(EnvironmentUnfitError, match="leave out --malloc"):
        library_path()


OPERATORS = """
import os
import numpy as np
scratch = [np.ones(1 << 18) for _ in range(4)]
print("preloaded", os.environ.get("LD_PRELOAD"))
"""


@pytest.mark.torch
def test_a_program_under_both_computes_the_same(
    memplan: Run, training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    # Another that the user preloads stays, and comes second.
    users = tmp_path / "users.so"
    users.symlink_to(library_path())
    monkeypatch.setenv("LD_PRELOAD", str(users))
    training.write_text(training.read_text() + OPERATORS)
    alone = memplan("record", "-q", "-o", "t.parquet", "train.py")
    assert alone.returncode == 0, alone.stderr
    assert memplan("solve", "t.parquet", "-o", "p.json").returncode == 0
    options = ("--malloc", "--report", "r.json")
    done = memplan("apply", *options, "p.json", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout
    assert f"preloaded {users}" in done.stdout
    assert "large requests beside tensors'" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["planned_requests"] > 0
    assert report["malloc"]["requests"] >= 4
    assert report["malloc"]["most_live"] >= 4 * (2 << 20)


def test_the_programs_exit_code_passes_through(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert memplan("record", "-q", "-o", "t.parquet", "train.py").returncode == 0
    assert memplan("solve", "t.parquet", "-o", "p.json").returncode == 0
    training.write_text(training.read_text() + "raise SystemExit(7)\n")
    assert memplan("apply", "--malloc", "-q", "p.json", "train.py").returncode == 7
