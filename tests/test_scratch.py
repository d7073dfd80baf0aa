"""Temporary folders: there while they are used, and gone however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from memplan.errors import EnvironmentUnfitError
from memplan.scratch import scratch_folder

ROOT = Path(__file__).parents[1]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program whose temporary folders lie in `folder`."""
    head = "import os, signal\nfrom memplan.scratch import scratch_folder\n"
    return subprocess.run(
        [sys.executable, "-c", head + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_private_and_goes_at_the_end() -> None:
    with scratch_folder("memplan-test-") as folder:
        assert folder.name.startswith("memplan-test-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
    assert not folder.exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_it_goes_with_a_signal_that_ends_the_process(tmp_path: Path, name: str) -> None:
    code = (
        "with scratch_folder() as folder, scratch_folder() as other:\n"
        "    (folder / 'file').write_text('x')\n"
        "    (other / 'file').write_text('x')\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    print('not ended')\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.Signals[name], "")
    assert list(tmp_path.iterdir()) == []


def test_what_is_put_away_is_put_away_once_told_twice(tmp_path: Path) -> None:
    code = (
        "with scratch_folder():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert run(code, tmp_path).returncode == -signal.SIGHUP
    assert list(tmp_path.iterdir()) == []


def test_handlers_are_as_before(tmp_path: Path) -> None:
    code = (
        "told = []\n"
        "own = lambda *_: told.append(1)\n"
        "signal.signal(signal.SIGTERM, own)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with scratch_folder() as folder:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert told == [1]\n"
        "assert signal.getsignal(signal.SIGTERM) is own\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "with scratch_folder():\n"
        "    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_threads_may_have_one() -> None:
    seen: list[Path] = []

    def use() -> None:
        with scratch_folder() as folder:
            seen.append(folder)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert not seen[0].exists()


def test_without_a_place_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentUnfitError, match="set TMPDIR"), scratch_folder():
        pass
