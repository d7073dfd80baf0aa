"""memplan record"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import get_args

import click

from memplan.cli import arguments, show
from memplan.errors import MemplanError, NoPlanError
from memplan.recording.cuda import path_of
from memplan.recording.options import Device, RecordOptions, Stacks
from memplan.recording.ranks import written_by_rank
from memplan.recording.record import Recording
from memplan.recording.target import run
from memplan.trace.liveness import StepWorkload, step_problem
from memplan.trace.recovery import Written
from memplan.trace.streams import streams_of
from memplan.trace.trace import Mark
from memplan.units import format_bytes

MOST_SEARCHED = 1 << 20  # events among which the hot step is looked for at once


@click.command("record", cls=arguments.ProgramCommand)
@arguments.output(
    "The trace: .parquet, .json or .json.gz; %r in it becomes the rank under "
    "torchrun.  [default: SCRIPT.PID.parquet]",
    arguments.THE_PROGRAMS,
)
@click.option(
    "--device",
    type=click.Choice(get_args(Device)),
    default="auto",
    show_default=True,
    help="Whose memory to record; auto: the GPU's if SCRIPT uses it. "
    "CUDA is experimental.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Stop recording after this many steps; the program runs on.",
)
@click.option(
    "--stacks",
    type=click.Choice(["python", "none"]),
    default="none",
    show_default=True,
    help="Note the Python stack of each allocation.",
)
@arguments.force("the trace if it exists")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all goes well.")
@arguments.program
def command(
    output: Path | None,
    device: Device,
    steps: int | None,
    stacks: Stacks,
    force: bool,
    quiet: bool,
    module: str | None,
    script: tuple[str, ...],
) -> None:
    """Run SCRIPT and write down what it allocates.

    The program runs as it would without memplan: same arguments, same output, same
    exit code. Recorder failures end with 125.

    \b
    Example: memplan record -o train.parquet train.py --epochs 1
    """
    target = arguments.target(module, script)
    stem = target.name if target.is_module else Path(target.name).stem
    process = os.getpid()
    path = written_by_rank(output) if output else Path(f"{stem}.{process}.parquet")
    options = RecordOptions(
        device=device,
        steps=steps,
        stacks=stacks,
        force=force,
        program=target.identity(),
        argv=target.command(),
    )
    recording = Recording(path, options)
    recording.start()
    try:
        code = run(target)
    finally:
        # A forked child may get here, too: the recording is its parent's.
        ours = os.getpid() == process
        failure = _finish(recording) if ours else None
    if failure is not None:
        show.note(str(failure))
        sys.exit(code or failure.exit_code)
    if ours and not quiet and recording.written is not None:
        _summarise(path, recording, recording.written)
        _tell_of_cuda(path, recording)
    sys.exit(code)


def _finish(recording: Recording) -> MemplanError | None:
    """The program's exit code comes first: a failure of ours is told, not raised."""
    try:
        recording.finish()
    except MemplanError as failure:
        return failure
    return None


def _summarise(path: Path, recording: Recording, written: Written) -> None:
    """What the recording found, and what to do next; `path` is the file's, as given."""
    summary = written.summary
    rows = [
        ("events", f"{summary.events:,} ({show.file_size(recording.path)})"),
        ("steps", f"{summary.steps:,}, cut by {_CUTS[summary.mark]}"),
        ("peak live", format_bytes(summary.peak_live)),
    ]
    after = f"memplan solve {shlex.quote(str(path))}"
    trace = recording.trace if summary.events <= MOST_SEARCHED else None
    if trace is None:
        rows.append(("hot step", "not looked for among so many events; solving does"))
    else:
        try:
            found = step_problem(trace)
        except NoPlanError as failure:
            rows.append(("hot step", f"none: {failure}"))
            after += " --step all"
        else:
            rows += [
                ("hot step", _hot(found)),
                ("persistent", format_bytes(found.persistent_bytes)),
            ]
    if written.info.dropped_events:
        rows.append(("dropped", f"{written.info.dropped_events:,} events"))
    if written.info.device != "cpu":
        rows.insert(0, ("device", written.info.device))
    show.facts(f"memplan: recorded {path}", rows, err=True)
    show.facts(f"  next: {after}", (), err=True)


def _tell_of_cuda(first: Path, recording: Recording) -> None:
    """What a recording of CUDA memory has beside its first device's trace."""
    if recording.cpu_failure is not None:
        show.note(f"of the CPU's memory: {recording.cpu_failure}")
    for i, (device, trace) in enumerate(recording.traces.items()):
        if i:
            path = path_of(first, device)
            show.note(f"device {device} is in {path}: {len(trace):,} events")
        if len(streams_of(trace)) > 1:
            show.note(
                f"device {device} has {len(streams_of(trace))} streams; a plan serves "
                "one stream, see memplan.trace.streams"
            )
        if not trace.info.complete:
            show.note(
                f"the history of device {device} was full: its oldest events are "
                "missing; record fewer steps with --steps"
            )


_CUTS = {
    Mark.NONE: "nothing: the whole run is one",
    Mark.FORWARD: "the outermost module's forward calls",
    Mark.OPTIMIZER: "the optimizer's steps",
    Mark.EXPLICIT: "memplan.step()",
}


def _hot(found: StepWorkload) -> str:
    buffers = f"{len(found.problem) // found.unrolled:,} transient buffers"
    if found.hot is None:
        return f"the whole run: {buffers}"
    which = f"step {found.hot.begin}"
    if found.hot.period > 1:
        which = f"steps {found.hot.begin} to {found.hot.begin + found.hot.period - 1}"
    return f"{which}: {buffers}, repeated in every step after it"
