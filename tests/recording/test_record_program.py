"""Running somebody's program: it must not notice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command, Run

pytest.importorskip("torch")

PROBE = """\
import os, sys
print(__name__, __file__, sys.argv, os.path.basename(sys.path[0]), __spec__)
print(__builtins__, sorted(name for name in globals() if name.startswith("__")))
import neighbour
assert sys.modules["__main__"].__dict__ is globals()
"""


def plain(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What Python alone makes of it."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_script_sees_what_it_sees_without_memplan(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "probe.py").write_text(PROBE)
    arguments = ["--steps", "3", "-o", "x", "--", "-m", "--help"]
    alone = plain("probe.py", *arguments, cwd=tmp_path)
    recorded = memplan("record", "-q", "probe.py", *arguments)
    assert alone.returncode == 0
    assert recorded.stdout == alone.stdout
    assert recorded.stderr == ""


def test_a_module_runs_as_python_dash_m_does(memplan: Run, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = memplan("record", "-q", "-o", "t.parquet", "-m", "package", "--flag", "1")
    assert done.stdout == "__main__ ['--flag', '1']\n"
    assert done.returncode == 0


def test_an_exception_prints_as_it_does_without_memplan(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    done = memplan("record", "-q", "-o", "t.parquet", "script.py")
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert done.stderr == plain("script.py", cwd=tmp_path).stderr
    assert (tmp_path / "t.parquet").exists()


def test_the_programs_own_threads_are_waited_for(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import threading, time, torch\n"
        "def late():\n"
        "    time.sleep(0.5)\n"
        "    x = torch.empty(12345)\n"
        "    print('late')\n"
        "threading.Thread(target=late).start()\n"
    )
    done = memplan("record", "-q", "-o", "t.json", "script.py")
    assert done.stdout == "late\n"
    assert "49380" in (tmp_path / "t.json").read_text()


def test_children_by_spawn_and_by_fork_run_as_they_would(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import multiprocessing, sys, torch\n"
        "def work(n):\n    return float(torch.ones(n).sum())\n"
        "if __name__ == '__main__':\n"
        "    keep = torch.ones(1000)\n"
        "    for kind in ('fork', 'spawn'):\n"
        "        with multiprocessing.get_context(kind).Pool(2) as pool:\n"
        "            print(kind, pool.map(work, [10, 20, 30]))\n"
    )
    done = memplan("record", "-q", "-o", "t.parquet", "script.py")
    assert done.stdout == "fork [10.0, 20.0, 30.0]\nspawn [10.0, 20.0, 30.0]\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("missing.py", 3, "missing.py: no such script"),
        ("folder", 3, "folder is a folder; name the script in it"),
        ("-m no.such.module", 3, "no.such.module: no such module"),
        ("", 2, "name a script to run"),
        ("-o t.txt s.py", 2, "t.txt: no such form"),
        ("-o taken.parquet s.py", 2, "taken.parquet exists; pass --force"),
        ("-o nowhere/t.parquet s.py", 2, "nowhere is not a folder"),
        ("-o . s.py", 2, ""),
        ("--steps 0 s.py", 2, "--steps"),
        ("--steps never s.py", 2, "--steps"),
        ("--stacks all s.py", 2, "--stacks"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_program_starts(
    command: Command, tmp_path: Path, arguments: str, code: int, message: str
) -> None:
    (tmp_path / "s.py").write_text("print('started')")
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken.parquet").write_text("precious")
    said = command("record", *arguments.split())
    assert said.code == code
    assert message in said.err
    assert "started" not in said.out
    assert "Traceback" not in said.err
    assert (tmp_path / "taken.parquet").read_text() == "precious"


def test_a_script_whose_name_is_no_text_is_planned_and_run(
    memplan: Run, training: Path
) -> None:
    name = "tr\udcff.py"  # the byte ff
    training.rename(training.with_name(name))
    for arguments in (
        ["record", "-q", "-o", "t.parquet", name, "6"],
        ["solve", "t.parquet", "-o", "p.json"],
        ["apply", "p.json", name, "6"],
    ):
        done = memplan(*arguments)
        assert done.returncode == 0, done.stderr
    assert rb'"script": "tr\\xff.py"' in training.with_name("p.json").read_bytes()


def test_a_request_that_fails_is_told_at_the_end(memplan: Run, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import torch\n"
        "kept = torch.ones(256)\n"
        "def big():\n"
        "    return torch.empty(1 << 50, dtype=torch.uint8)\n"
        "big()\n"
    )
    done = memplan("record", "-o", "t.parquet", "p.py")
    assert done.returncode == 1
    assert "1.0 PiB could not be had after" in done.stderr
    assert "1.0 KiB live" in done.stderr
    assert f"asked for at   {tmp_path / 'p.py'}:4 in big (empty)" in done.stderr
    assert "next: memplan stats t.parquet" in done.stderr


def test_fake_tensors_of_the_programs_own_are_noticed_once_not_pytorchs(
    memplan: Run, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(
        "import torch\n"
        "torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))\n"
        "from torch.fx.experimental.proxy_tensor import make_fx\n"
        "make_fx(torch.sin, tracing_mode='fake')(torch.ones(3))\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "for i in range(3):\n"
        "    with FakeTensorMode():\n"
        "        torch.ones(1 << 40)\n"
        "        torch.nn.Linear(9, 9)(torch.ones(1, 9))\n"
        "real = torch.ones(1 << 20)\n"
    )
    done = memplan("record", "-o", "t.parquet", "p.py")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stderr.count("FakeTensorMode") == 1
    place = f"{tmp_path / 'p.py'}:7"
    assert f"uses FakeTensorMode ({place}): its fake tensors" in done.stderr
    assert re.search(r"peak live +4.0 MiB", done.stderr)


@pytest.mark.parametrize(
    ("body", "told", "follows"),
    [
        ("", "0 transient buffers", ""),
        ("keep = torch.ones(9)", "0 transient buffers", "memplan stats t.parquet"),
        ("torch.ones(9)", ": 1 transient buffer\n", "memplan solve t.parquet"),
    ],
)
def test_what_follows_a_recording_can_be_done_with_it(
    memplan: Run, command: Command, tmp_path: Path, body: str, told: str, follows: str
) -> None:
    (tmp_path / "s.py").write_text(f"import torch\n{body}\n")
    done = memplan("record", "-o", "t.parquet", "s.py")
    assert told in done.stderr
    assert done.stderr.partition("  next: ")[2].strip() == follows
    said = command("stats", "t.parquet")
    assert said.code == 0
    assert "who asked" not in said.err  # sites are in it, if anything is
