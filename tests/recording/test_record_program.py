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
