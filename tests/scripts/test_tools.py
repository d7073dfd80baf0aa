"""Scripts for maintainers: busy loops stop, and mutants are single changes."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Prints its parent's other children, which are the loops; then waits to be stopped.
WATCH = """
import os, sys
path = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
loops = {int(word) for word in open(path).read().split()} - {os.getpid()}
print(*loops, flush=True)
sys.stdin.read() if sys.argv[1:] else None
"""


def is_running(number: int) -> bool:
    stat = Path(f"/proc/{number}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_busy_loop_outlives_the_command(how: signal.Signals | None) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("needs Linux's /proc")
    command = [sys.executable, "-c", WATCH, *["wait"] * (how is not None)]
    busy = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "busy.py"), "--loops", "2", "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert busy.stdout is not None
    loops = [int(word) for word in busy.stdout.readline().split()]
    assert len(loops) == 2
    if how is not None:
        os.kill(busy.pid, how)
    busy.communicate()
    assert (busy.returncode == 0) == (how is None)
    while any(is_running(loop) for loop in loops):
        time.sleep(0.05)


def test_a_mutant_is_one_change_of_one_line() -> None:
    from mutate import mutated

    path = SCRIPTS / "mutate.py"
    text = path.read_text()
    for seed in range(20):
        found = mutated(path, random.Random(seed))
        assert found is not None
        changed, line, _ = found
        ast.parse(changed)
        pairs = zip(text.splitlines(), changed.splitlines(), strict=True)
        assert [n for n, (a, b) in enumerate(pairs, 1) if a != b] == [line]
