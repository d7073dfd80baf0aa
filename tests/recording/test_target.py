"""What a program does with Python's own surroundings, and what is said after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command, Run

# As commands have it: the program, a word about it, and its code.
RUNNER = """\
import sys
sys.path.insert(1, sys.argv.pop(1))
from memplan.recording.target import leaving_concluded
from memplan.recording.target import Target, run
say = lambda goes_on: print("goes on", goes_on, file=sys.stderr)
with leaving_concluded(say):
    is_module = sys.argv[1] == "-m"
    name, *arguments = sys.argv[1 + is_module:]
    code = run(Target(name, tuple(arguments), is_module))
print("said afterwards", file=sys.stderr)
sys.stdout.flush()
sys.exit(code)
"""
TEE = """\
import sys
class Log:
    def __init__(self, stream): self.stream = stream
    def write(self, text): return self.stream.write(text)
    def flush(self): self.stream.flush()
"""
ENDS = {
    "closes both": "import sys; print(1); sys.stdout.close(); sys.stderr.close()",
    "closed, and fails": "import sys; sys.stderr.close(); 1 / 0",
    "closed, and exits": "import sys; sys.stderr.close(); sys.exit('why')",
    "replaces both": TEE + "sys.stdout, sys.stderr = Log(sys.stdout), Log(sys.stderr)",
    "into memory": "import io, sys; sys.stderr = io.StringIO(); print(2)",
    "none": "import sys; sys.stdout = sys.stderr = None; print(2)",
    "wraps the bytes": "import io, sys\nfor name in ('stdout', 'stderr'):\n"
    "    raw = getattr(sys, name).buffer\n"
    "    setattr(sys, name, io.TextIOWrapper(raw, encoding='utf-8'))\nprint('\xfc')",
    "takes the bytes": "import io, sys\nfor name in ('stdout', 'stderr'):\n"
    "    raw = getattr(sys, name).detach()\n"
    "    setattr(sys, name, io.TextIOWrapper(raw, encoding='utf-8'))\nprint('\xfc')",
    "deleted": "import sys; del sys.stdout, sys.stderr",
    "closes its log": "import sys; sys.stdout = open('log', 'w'); sys.stdout.close()",
    "a code": "raise SystemExit(7)",
    "no code": "raise SystemExit()",
    "true": "import sys; sys.exit(True)",
    "exits in its hook": "import sys; sys.excepthook = lambda *_: sys.exit(42); 1 / 0",
    "shows in its hook": "import sys; sys.excepthook = lambda *e: print(e[1]); 1 / 0",
    "uses builtins": "__builtins__.word = 'w'; print(word, __builtins__.__name__)",
}
PRINTS = {
    "a word": "raise SystemExit('bad luck')",
    "fails": "def f():\n    return 1 / 0\n\n\nf()\n",
    "no syntax": "x = = 1\n",
    "fails in its hook": "import sys; sys.excepthook = lambda *_: [][0]; 1 / 0",
}
LATE = """\
import atexit, pickle, sys, threading, time


def double(n):
    return 2 * n


def late():
    time.sleep(0.2)
    print(sys.argv, sys.path[0], pickle.loads(pickle.dumps(double))(4))


if __name__ == "__main__":
    print(__file__, __package__, type(__loader__).__name__, __cached__)
    print(getattr(__spec__, "name", None), getattr(__spec__, "origin", None))
    threading.Thread(target=late).start()
    atexit.register(late)
"""


def ran(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("body", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_under_python(body: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(body)
    alone = ran("script.py", cwd=tmp_path)
    done = ran("-c", RUNNER, str(ROOT), "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert "said afterwards" in done.stderr.splitlines()


@pytest.mark.parametrize("body", PRINTS.values(), ids=PRINTS)
def test_what_a_program_prints_at_its_end_is_what_python_prints(
    body: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(body)
    alone = ran("script.py", cwd=tmp_path)
    done = ran("-c", RUNNER, str(ROOT), "script.py", cwd=tmp_path)
    assert done.returncode == alone.returncode
    assert alone.stderr and done.stderr == alone.stderr + "said afterwards\n"


@pytest.mark.parametrize("program", [("late.py", "-x"), ("-m", "late", "-x")])
def test_threads_and_exit_handlers_find_the_program_where_it_was(
    program: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    alone = ran(*program, cwd=tmp_path)
    done = ran("-c", RUNNER, str(ROOT), *program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, alone.stdout)
    assert done.stderr == "said afterwards\n"


def test_exit_handlers_write_to_the_programs_log(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import atexit, sys\n"
        "sys.stdout = open('log', 'w')\n"
        "atexit.register(print, 'bye')\n"
        "print('in it')\n"
    )
    done = ran("-c", RUNNER, str(ROOT), "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "log").read_text() == "in it\nbye\n"


@pytest.mark.parametrize(
    ("leave", "code", "goes_on"),
    [
        ("os._exit(9)", 9, False),
        ("os.execlp(sys.executable, 'python', '-c', 'print(5)')", 0, True),
        (
            "\ntry: os.execvp('no-such', ['no-such'])\nexcept OSError: os._exit(6)",
            6,
            False,
        ),
        ("del sys.stdout, sys.stderr; os._exit(5)", 5, False),
        ("sys.__stderr__.close(); os._exit(4)", 4, False),
        ("sys.__stderr__.detach(); os._exit(3)", 3, False),
    ],
)
def test_leaving_at_once_is_told_once(
    leave: str, code: int, goes_on: bool, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import io, os, sys\n"
        "sys.stderr = io.StringIO()\n"
        "if not os.fork():\n"
        "    os._exit(1)\n"  # a child's way out is its own
        f"os.wait()\n{leave}\n"
    )
    done = ran("-c", RUNNER, str(ROOT), "script.py", cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr == f"goes on {goes_on}\n"


def test_a_pool_can_be_told_to_leave_at_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, pickle; pickle.dumps(os._exit)")
    done = ran("-c", RUNNER, str(ROOT), "script.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "said afterwards\n")


def test_a_recording_and_a_report_end_with_a_program_that_leaves_at_once(
    memplan: Run, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(
        "import os, torch\nkeep = torch.empty(12345)\nos._exit(9)\n"
    )
    done = memplan("record", "-o", "t.json", "script.py")
    assert done.returncode == 9
    assert "memplan: recorded t.json" in done.stderr
    assert "49380" in (tmp_path / "t.json").read_text()
    assert not (tmp_path / "t.json.journal").exists()
    command("solve", "--step", "all", "-o", "p.json", "t.json")
    done = memplan("apply", "--report", "r.json", "p.json", "script.py")
    assert done.returncode == 9
    assert "steps under the plan" in done.stderr
    assert (tmp_path / "r.json").exists()
