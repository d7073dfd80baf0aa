"""The public functions take the path of a trace or a plan wherever they take one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import memplan
from memplan.errors import FormatError, InputError, MemplanError, UsageError
from memplan.trace.trace import Trace
from tests.conftest import Command
from tests.reporting.pages import loop


class Files(NamedTuple):
    """A trace and its plan, with the files of both."""

    trace: Trace
    plan: memplan.Plan
    trace_path: Path
    plan_path: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("paths")
    paths = folder / "train.parquet", folder / "train.plan.json"
    memplan.write_trace(loop(steps=6), paths[0])
    trace = memplan.read_trace(paths[0])
    plan = memplan.solve(trace)
    memplan.write_plan(plan, paths[1])
    return Files(trace, plan, *paths)


LIMITS = memplan.Limits(most=1 << 40, no_leak=False)
TAKING_TRACES: dict[str, Callable[[Any], object]] = {
    "check": lambda source: memplan.check(source, LIMITS),
    "summarize": lambda source: repr(memplan.summarize(source)),
    "live_at": lambda source: memplan.live_at(source, "2").bytes,
    "buffers_of": lambda source: memplan.buffers_of(source).size.tolist(),
    "solve": lambda source: memplan.solve(source).offsets.tolist(),
    "diff": lambda source: memplan.diff(source, source).delta,
    "plot": lambda source: [text.get_text() for text in memplan.plot(source).texts],
}
TAKING_PLANS: dict[str, Callable[[Any], object]] = {
    "check": lambda source: memplan.check(source, LIMITS),
    "verify": memplan.verify,
    "plot": lambda source: [text.get_text() for text in memplan.plot(source).texts],
}


@pytest.mark.parametrize("verb", TAKING_TRACES)
def test_a_path_stands_for_its_trace(files: Files, verb: str) -> None:
    call = TAKING_TRACES[verb]
    assert call(files.trace_path) == call(str(files.trace_path)) == call(files.trace)


@pytest.mark.parametrize("verb", TAKING_PLANS)
def test_a_path_stands_for_its_plan(files: Files, verb: str) -> None:
    call = TAKING_PLANS[verb]
    assert call(files.plan_path) == call(str(files.plan_path)) == call(files.plan)


def test_a_path_stands_for_a_baseline(files: Files) -> None:
    for_trace = memplan.Limits(baseline=files.trace_path)
    assert memplan.check(files.trace, for_trace).passed
    for_plan = memplan.Limits(baseline=str(files.plan_path))
    assert memplan.check(files.plan, for_plan).passed
    with pytest.raises(UsageError, match="give a trace a trace as its baseline"):
        memplan.check(files.trace, memplan.Limits(baseline=files.plan_path))


def test_a_plan_of_a_path_says_where_it_came_from(
    files: Files, command: Command, tmp_path: Path
) -> None:
    plan = memplan.solve(files.trace_path, seed=3)
    assert command("solve", files.trace_path, "--seed", "3", "-o", "p.json").code == 0
    made = memplan.read_plan("p.json").provenance.source
    assert plan.provenance.source == made
    assert made.name == "train.parquet"
    problem = tmp_path / "p.csv"
    problem.write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\n")
    assert memplan.solve(problem).peak == 128


@pytest.mark.parametrize(
    ("verb", "accepted"),
    [
        *((verb, "a Trace or the path of one") for verb in ("summarize", "buffers_of")),
        *((verb, "a Trace, a Plan, or the path of one") for verb in ("check", "plot")),
        ("live_at", "a Trace, the path of one, or its buffers"),
        ("solve", "a Trace, a Problem, the path of one, or arrays (lower, upper, si"),
    ],
)
def test_other_types_are_refused_with_what_is_taken(verb: str, accepted: str) -> None:
    with pytest.raises(TypeError, match=f"expected {re.escape(accepted)}.*, not int"):
        TAKING_TRACES[verb](3)
    with pytest.raises(TypeError, match="not NoneType"):
        TAKING_TRACES[verb](None)


def test_a_plan_and_limits_are_no_numbers(files: Files) -> None:
    with pytest.raises(TypeError, match="expected a Plan or the path of one, not int"):
        memplan.verify(3)  # type: ignore[arg-type]
    with (
        pytest.raises(TypeError, match="a Plan or the path of one, not Trace"),
        memplan.apply(files.trace),  # type: ignore[arg-type]
    ):
        pass
    with pytest.raises(TypeError, match="expected Limits, not int"):
        memplan.check(files.trace, 1 << 30)  # type: ignore[arg-type]


def test_a_file_that_is_something_else_is_refused(files: Files, tmp_path: Path) -> None:
    for verb in ("summarize", "live_at", "solve", "buffers_of"):
        with pytest.raises(FormatError):
            TAKING_TRACES[verb](files.plan_path)
        with pytest.raises(InputError, match=r"none\.parquet: no such file"):
            TAKING_TRACES[verb](tmp_path / "none.parquet")
    with pytest.raises(FormatError):
        memplan.verify(files.trace_path)


def test_python_errors_name_parameters_and_the_command_line_options(
    files: Files,
) -> None:
    def shell(call: Callable[[], object]) -> tuple[str, str]:
        with pytest.raises(MemplanError) as caught:
            call()
        return str(caught.value), caught.value.shell

    limits = memplan.Limits
    told, shown = shell(limits)
    assert told.startswith("nothing to check: give most, baseline")
    assert shown.startswith("nothing to check: give --max, --baseline")
    told, shown = shell(lambda: memplan.check(files.trace, limits(1, of="reserved")))
    assert 'record with device="fake:cuda"' in told
    assert "record with --device fake:cuda" in shown
    told, shown = shell(lambda: memplan.check(files.plan, limits(no_leak=True)))
    assert told.startswith("no_leak=True needs a trace")
    assert shown.startswith("--no-leak needs a trace")
    told, shown = shell(lambda: memplan.solve(files.trace, step=99))
    assert told.startswith("step 99: the trace has steps 0 to ")
    assert shown.startswith("--step 99: the trace has steps 0 to ")
    told, shown = shell(lambda: memplan.solve(files.trace, budget="min"))
    assert told.endswith("record the program again with activations=True")
    assert shown.endswith("record the program again: memplan record --activations")
    for text in (told, str(InputError("plain"))):
        assert "--" not in text
    assert InputError("plain").shell == "plain"
