"""The time limit of an export leaves a program's own alarm as it was."""

from __future__ import annotations

import contextlib
import gc
import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memplan.graph.export import NotExportableError, export

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Calls(torch.nn.Module):
    """Calls what it is given, while it is exported too."""

    def __init__(self, during: Any) -> None:
        super().__init__()
        self.during = during

    def forward(self, x: Any) -> Any:
        self.during()
        return x + 1


@pytest.fixture
def rang() -> Iterator[threading.Event]:
    """Set by a program's own alarm."""
    event = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: event.set())
    yield event
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def exported(during: Any, seconds: float) -> None:
    export(Calls(during), (torch.zeros(2),), {}, seconds)


def test_an_alarm_that_is_set_goes_on(rang: threading.Event) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000, 7)
    exported(lambda: None, 100)
    left, every = signal.getitimer(signal.ITIMER_REAL)
    assert 500 < left < 1000
    assert every == 7
    assert not rang.is_set()


def test_an_alarm_that_is_due_meanwhile_rings_after(rang: threading.Event) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1e-3)
    exported(lambda: None, 100)
    assert rang.wait(60)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_alarm_outlives_a_time_limit(rang: threading.Event) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    with pytest.raises(NotExportableError, match="more than 100 s"):
        exported(lambda: signal.raise_signal(signal.SIGALRM), 100)
    assert not rang.is_set()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 500


def test_without_an_alarm_none_is_left(rang: threading.Event) -> None:
    exported(lambda: None, 100)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert not rang.is_set()


def test_what_the_garbage_collector_calls_is_not_stopped() -> None:
    """It would swallow the exception, and the export never end."""
    ended = []

    def collected(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            signal.raise_signal(signal.SIGALRM)
            ended.append(phase)

    def during() -> None:
        gc.callbacks.append(collected)
        gc.collect()
        gc.callbacks.remove(collected)

    with contextlib.suppress(NotExportableError):  # it may be stopped afterwards
        exported(during, 100)
    assert ended


def test_an_import_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a module would have run, and torch's own do so as they are exported."""
    code = "import signal\nsignal.raise_signal(signal.SIGALRM)\nis_whole = True\n"
    (tmp_path / "imported_late.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.suppress(NotExportableError):  # it may be stopped afterwards
        exported(lambda: importlib.import_module("imported_late"), 100)
    assert sys.modules.pop("imported_late").is_whole


def test_a_stop_that_is_swallowed_is_tried_again() -> None:
    def during() -> None:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGALRM)
        while True:
            pass

    with pytest.raises(NotExportableError, match="more than 100 s"):
        exported(during, 100)


class Deep(torch.nn.Module):
    """Runs so many operators that its export can be stopped in most of torch's code."""

    def forward(self, x: Any) -> Any:
        for _ in range(20):
            x = torch.relu(x @ x.T @ x).sin() + x.mean(0)
        return x


def test_a_stopped_export_leaves_torch_as_it_was() -> None:
    x = torch.ones(3, 3)
    for seconds in (0.003, 0.01, 0.03, 0.06, 0.1, 0.15):
        with contextlib.suppress(NotExportableError):
            export(Deep(), (x,), {}, seconds, sizes=[(torch.ones(3, 3), {0})])
        assert export(Deep(), (x,), {}).signature
