"""memplan apply"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan.applying.session import loader_of
from memplan.applying.suitability import check_program
from memplan.cli import arguments, show
from memplan.core.plan import Plan
from memplan.errors import MemplanError, UsageError
from memplan.files import refuse_overwrite, write_bytes
from memplan.recording.ranks import of_rank, written_by_rank
from memplan.recording.shim import require_torch

if TYPE_CHECKING:
    from memplan.applying.cuda import StreamPlan
    from memplan.applying.report import Report

_DIGITS = 3  # of a GPU's number


@click.command("apply", cls=arguments.ProgramCommand)
@click.option(
    "--report",
    type=arguments.OutputFile(arguments.THE_PROGRAMS),
    help="File for the report as JSON; under torchrun, %r here and in PLAN stands for "
    "the rank.",
)
@arguments.force("the report if it exists")
@click.option(
    "--replan/--no-replan",
    default=True,
    help="Replan while SCRIPT runs if the plan does not match.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="N | N:PLAN",
    help="GPU index of PLAN [default: 0], or a plan for another GPU; repeatable.",
)
@arguments.existing("plan")
@arguments.program
def command(
    report: Path | None,
    force: bool,
    replan: bool,
    devices: tuple[str, ...],
    plan: Path,
    module: str | None,
    script: tuple[str, ...],
) -> None:
    """Run SCRIPT with its tensors at the offsets of PLAN.

    memplan verifies the plan first. SCRIPT's results stay the same, and memplan
    passes on its exit code. memplan also serves requests that depart from the plan,
    and counts them in the report.

    A plan from a CUDA recording runs inside torch's CUDA allocator. This is
    experimental: docs/cuda.md says what has run on a GPU.

    \b
    Example: memplan apply train.plan.json train.py --epochs 90
    """
    target = arguments.target(module, script)

    def start() -> Callable[[], int]:
        name, file = str(of_rank(plan)), report
        if file is not None:
            # Absolute: the program may go to another folder.
            file = Path(os.path.abspath(written_by_rank(file)))
            refuse_overwrite(file, force)
        found = arguments.read_plan(name)
        device, others = _placed(devices)
        loader = loader_of(found, name, replan=replan, device=device, others=others)
        check_program(found, target.identity(), name)
        _compare_environment(found)
        loader.start()
        stopping.callback(loader.stop)

        def conclude() -> int:
            loader.stop()
            return _conclude(loader.report(), found, file)

        return conclude

    lost = "the program replaced itself with another one, which has no plan"
    with contextlib.ExitStack() as stopping:  # in forked children, too
        arguments.run_program(target, start, lost, str(plan))


def _conclude(result: Report, plan: Plan, file: Path | None) -> int:
    """Print the report, and write it to `file`; the exit code of a failure, or 0."""
    if not show.is_hushed():
        from memplan.cli import apply_report  # late: most runs end later

        apply_report.show_report(result)
    elif result.fault:
        show.complaint(f"the plan was not applied: {result.fault}")
    _compare_threads(plan)
    if file is not None:
        text = json.dumps(result.to_json(), indent=2, sort_keys=True)
        try:
            write_bytes(file, text.encode() + b"\n")
        except MemplanError as failure:
            show.complaint(failure.shell)
            return failure.exit_code
    return 0


def _placed(devices: tuple[str, ...]) -> tuple[int | None, list[StreamPlan]]:
    """PLAN's GPU, if given, and the plans for other GPUs. Raises UsageError for
    anything else."""
    own: int | None = None
    others: list[StreamPlan] = []
    for text in devices:
        number, colon, name = text.partition(":")
        wrong = not number.isdecimal() or len(number) > _DIGITS or (colon and not name)
        if wrong or (own is not None and not colon):
            raise UsageError(
                f"--device {text}: give the index of PLAN's GPU once, or an index "
                "and a plan, such as 1:train.cuda1.plan.json"
            )
        if colon:
            from memplan.applying.cuda import StreamPlan

            path = of_rank(Path(name))
            found = arguments.read_plan(path)
            others.append(StreamPlan(found, int(number), name=str(path)))
        else:
            own = int(number)
    return own, others


def _compare_environment(plan: Plan) -> None:
    """Warn if torch's version may change the program's requests."""
    planned = plan.provenance.program.torch
    running = str(require_torch("applying a plan").__version__)
    if planned and planned != running:
        show.complaint(
            f"the plan was recorded with torch {planned}, and this is {running}; "
            "requests that differ are served outside the plan"
        )


def _compare_threads(plan: Plan) -> None:
    """Warn if the number of threads, which changes requests, was another one."""
    planned = plan.provenance.program.threads
    threads = require_torch("applying a plan").get_num_threads()
    if planned and planned != threads:
        show.complaint(
            f"the plan was recorded with {planned} threads, and this ran with "
            f"{threads}; record with {threads} threads to plan all requests"
        )
