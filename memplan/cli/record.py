"""memplan record"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import arguments, show
from memplan.errors import MemplanError, NoPlanError
from memplan.recording.options import History, RecordOptions, Stacks, Steps
from memplan.recording.ranks import written_by_rank
from memplan.recording.record import Recording
from memplan.trace.liveness import StepWorkload, step_problem
from memplan.trace.lives import Summary
from memplan.trace.read import read_trace
from memplan.trace.recovery import Written, path_of
from memplan.trace.streams import NEEDED, streams_of
from memplan.trace.trace import Mark
from memplan.units import format_bytes

MOST_SEARCHED = 1 << 19  # events among which the hot step is looked for at once


def _steps(text: str) -> Steps:
    """A number of steps, auto or all."""
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    number: int = click.IntRange(min=1)(text)
    return number


@click.command("record", cls=arguments.ProgramCommand)
@arguments.output(
    "The trace: .parquet, .json or .json.gz; %r in it becomes the rank under "
    "torchrun.  [default: SCRIPT.PID.parquet]",
    arguments.THE_PROGRAMS,
)
@click.option(
    "--device",
    default="auto",
    metavar="auto|cpu|cuda|fake[:cuda[:GPU]]",
    help="Memory to record. auto: the GPU's if SCRIPT uses one, else the CPU's (CUDA "
    "is experimental). fake: allocate nothing, record what SCRIPT would allocate. "
    "fake:cuda: the same on a simulated GPU; fake:cuda:a100 or fake:cuda:24GiB sets "
    "its size.",
)
@click.option(
    "--steps",
    type=_steps,
    default="auto",
    metavar="N|auto|all",
    help="Number of steps to record; auto: until the steps repeat. SCRIPT then runs "
    "on, unrecorded.",
)
@click.option("--then-exit", is_flag=True, help="End SCRIPT when the recording stops.")
@click.option(
    "--stacks",
    type=click.Choice(get_args(Stacks)),
    default="site",
    help="Call sites to record. site: line, module and operator; python: the whole "
    "Python stack; none: nothing.",
)
@click.option(
    "--activations",
    is_flag=True,
    help="Also record calls of modules and the tensors that autograd saves in them: "
    "memplan solve --budget needs them. Records a few steps, which take longer.",
)
@click.option(
    "--cuda-history",
    "history",
    type=click.Choice(get_args(History)),
    default="auto",
    help="Source of CUDA events. slot: PyTorch's allocator calls memplan for each "
    "event; torch: PyTorch's memory history, which may overflow, and which SCRIPT "
    "cannot use then; auto: slot if memplan knows this version of the allocator, else "
    "torch.",
)
@arguments.force("the trace if it exists")
@arguments.program
def command(
    output: Path | None,
    device: str,
    steps: Steps,
    then_exit: bool,
    module: str | None,
    script: tuple[str, ...],
    **more: Any,
) -> None:
    """Run SCRIPT and record what it allocates.

    SCRIPT runs as it does without memplan: same arguments, same output, same exit
    code. If the recording fails but SCRIPT does not, the exit code is 125.

    \b
    Example: memplan record -o train.parquet train.py --epochs 1
    """
    target = arguments.target(module, script)

    def start() -> Callable[[], int]:
        stem = target.name if target.is_module else Path(target.name).stem
        default = Path(f"{stem}.{os.getpid()}.parquet")
        path = written_by_rank(output) if output else default
        options = RecordOptions(
            device=device,
            steps=steps,
            # No kernel runs: there is nothing to run on for.
            then_exit=then_exit or (device.startswith("fake") and steps != "all"),
            program=target.identity(),
            argv=target.command(),
            **more,
        )
        recording = Recording(path, options)
        recording.start()
        return lambda: _conclude(path, recording)

    lost = "the program replaces itself by another, which is not recorded"
    arguments.run_program(target, start, lost)


def _conclude(path: Path, recording: Recording) -> int:
    """Finish and print a summary. Returns the exit code of a failure, or 0.

    The program's own exit code comes first, so failures are printed, not raised.
    """
    try:
        recording.close()
    except MemplanError as failure:
        show.complaint(failure.shell)
        return failure.exit_code
    if recording.written is not None:
        if not show.is_hushed():
            _summarise(path, recording, recording.written)
        _print_cuda(path, recording)
        for text in recording.notes:
            show.note(text)
    return 0


def _summarise(path: Path, recording: Recording, written: Written) -> None:
    """Print what was recorded and the next command; `path` as the user gave it."""
    summary = written.summary
    size = format_bytes(recording.path.stat().st_size)
    rows = [("events", f"{summary.events:,} ({size})")]
    if recording.stopped:
        rows.append(("stopped", recording.stopped))
    rows += [
        ("steps", f"{summary.steps:,}, cut by {_CUTS[summary.mark]}"),
        ("peak live", format_bytes(summary.peak_live)),
    ]
    verb, whole = "solve", ""
    if summary.failed:
        rows += _failed(recording, summary)
        verb = "stats"
    if summary.events > MOST_SEARCHED:
        rows.append(("hot step", "not searched for: too many events; solve does it"))
    else:
        try:
            found = step_problem(read_trace(recording.path, NEEDED))
        except NoPlanError as failure:
            rows.append(("hot step", f"none: {failure.shell}"))
            whole = " --step all" if verb == "solve" else ""
        else:
            if not len(found.problem):  # what is not freed is not planned
                verb = "stats"
            rows += [
                ("hot step", _hot(found)),
                ("persistent", format_bytes(found.persistent_bytes)),
            ]
    if not summary.events:
        show.note(
            f"{path} is empty: this process allocated no tensors on the CPU. If it "
            "starts the program in another process, start that one with "
            "python -m memplan record -o FILE SCRIPT"
        )
    if written.info.dropped_events:
        rows.append(("dropped", f"{written.info.dropped_events:,} events"))
    if written.info.device != "cpu":
        rows.insert(0, ("device", written.info.device))
    show.facts(f"memplan: recorded {path}", rows, err=True)
    if recording.notes_activations and verb == "solve":
        whole = " --curve"
    if summary.events:
        after = f"memplan {verb} {shlex.quote(str(path))}{whole}"
        show.facts(f"  next: {after}", (), err=True)


def _failed(recording: Recording, summary: Summary) -> list[tuple[str, str]]:
    """The first request that failed."""
    if summary.events > MOST_SEARCHED:
        text = f"a request for {format_bytes(summary.failed_bytes)} failed"
        return [("out of memory", text)]
    from memplan.cli.stats import oom_rows
    from memplan.reporting.stats import summarize

    return oom_rows(summarize(read_trace(recording.path)))


def _print_cuda(first: Path, recording: Recording) -> None:
    """The traces of further GPUs, and what is missing from any of them."""
    if recording.cpu_failure is not None:
        show.complaint(f"CPU memory was not recorded: {recording.cpu_failure}")
    for i, (device, trace) in enumerate(recording.traces.items()):
        if i:
            path = path_of(first, device)
            show.note(f"device {device} is in {path}: {len(trace):,} events")
        if len(streams_of(trace)) > 1:
            show.complaint(
                f"device {device} used {len(streams_of(trace))} streams; a plan serves "
                "one of them"
            )
        if not trace.info.complete and not recording.observed:
            show.complaint(
                f"the memory history of device {device} overflowed and lost its oldest "
                "events; record fewer steps with --steps"
            )


_CUTS = {
    Mark.NONE: "nothing: the whole run is one step",
    Mark.FORWARD: "the outermost module's forward calls",
    Mark.OPTIMIZER: "the optimizer's steps",
    Mark.EXPLICIT: "memplan.step()",
}


def _hot(found: StepWorkload) -> str:
    count = len(found.problem) // found.unrolled
    buffers = f"{count:,} transient buffer{'s' * (count != 1)}"
    if found.hot is None:
        return f"the whole run: {buffers}"
    if found.together is not None:
        most = f"{found.together.threads} threads at a time"
        return f"{buffers} in each thread's steps, {most}"
    if found.unmarked:
        return f"{buffers}, in a loop found in the sequence of requests"
    which = f"step {found.hot.begin}"
    if found.hot.period > 1:
        which = f"steps {found.hot.begin} to {found.hot.begin + found.hot.period - 1}"
    if found.hot.passes > 1:
        last = found.hot.begin + found.hot.period * found.hot.passes - 1
        sizes = ", in varying sizes" if found.hot.elastic else ""
        return f"{which}: {buffers}, repeated until step {last}{sizes}"
    return f"{which}: {buffers}"
