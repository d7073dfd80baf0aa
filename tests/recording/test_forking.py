"""Runs in children of a process that has loaded torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from memplan.errors import RecordError
from memplan.recording.forking import Ended, ForkServer, last_error

CHANGES = """
import atexit, sys
import torch
assert not hasattr(torch, "changed")
torch.changed = True
assert sys.stdin.read() == ""
print("dropped")
atexit.register(print, *sys.argv[1:], file=sys.stderr)
sys.exit(len(sys.argv))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module's file, beside a torch that loads in no time."""
    (tmp_path / "torch.py").touch()
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "program.py"


def test_each_run_is_a_process_of_its_own(
    module: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module.write_text(CHANGES)
    with ForkServer() as server:
        assert server.run("program", ["one", "a\nline"]) == Ended(3, "one a\nline\n")
        assert server.run("program", []) == Ended(1, "\n")
    assert capfd.readouterr() == ("", "")


def test_how_a_run_ended_is_told(module: Path) -> None:
    module.write_text("import os, sys\nos.kill(os.getpid(), int(sys.argv[1]))")
    with ForkServer({**os.environ, "PYTHONHASHSEED": "0"}) as server:
        assert server.run("program", ["9"]) == Ended(-9, "")
        module.write_text("raise ValueError(hash('a'))")
        ended, again = (server.run("program", []) for _ in range(2))
    assert ended == again
    assert ended.code == 1
    assert ended.said.splitlines()[-1].startswith("ValueError: ")
    assert "memplan" not in ended.said


@pytest.mark.parametrize("killed", ["run", "server"])
def test_an_exception_ends_what_runs(module: Path, killed: str) -> None:
    parent = "" if killed == "run" else "os.kill(os.getppid(), signal.SIGKILL)"
    module.write_text(
        "import os, pathlib, signal, time\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        f"pathlib.Path('pid').rename('ready')\n{parent}\ntime.sleep(900)\n"
    )
    ready = module.with_name("ready")

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    error = RecordError
    if killed == "run":
        error = KeyboardInterrupt  # type: ignore[assignment]
        threading.Thread(target=interrupt).start()
    with pytest.raises(error), ForkServer() as server:
        server.run("program", [])
    stat = Path(f"/proc/{ready.read_text()}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


def test_threads_of_a_run_end_before_it(module: Path) -> None:
    module.write_text(
        "import pathlib, threading, time\n"
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    pathlib.Path('late').write_text('done')\n"
        "threading.Thread(target=late).start()\n"
    )
    with ForkServer() as server:
        assert server.run("program", []).code == 0
    assert module.with_name("late").read_text() == "done"


def test_a_loader_needs_nothing_but_code(module: Path) -> None:
    (module.parent / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Loader:\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): pass\n"
        "    def get_code(self, name):\n"
        "        return compile('raise SystemExit(7)', name, 'exec')\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'made':\n"
        "            return importlib.util.spec_from_loader(name, Loader())\n"
        "sys.meta_path.append(Finder())\n"
    )
    with ForkServer() as server:
        assert server.run("made", []).code == 7


def test_the_line_that_says_what_a_program_ended_with() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "    f()"]
    caused = [*trace, "KeyError: 'a'", "", "The above exception was the cause:", ""]
    text = ["RuntimeError: shapes differ:", "saved: (3,)", "Set VERBOSE=1 for more."]
    assert last_error([*caused, *trace, *text]) == text[0]
    assert last_error(["some warning", "ValueError: no data"]) == "ValueError: no data"
    assert last_error([*trace]) == "    f()"
    assert last_error([]) == ""
