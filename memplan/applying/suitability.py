"""Whether a plan can be applied at all, and to which steps and program."""

from __future__ import annotations

from memplan.core.plan import Plan, Program
from memplan.core.verify import verify
from memplan.errors import InputError

# Bytes of every block that torch hands out; of CUDA's, requests are rounded up to it.
ALIGNMENT = {"cpu": 64, "cuda": 512}


def check_plan(plan: Plan, name: str, device: str) -> None:
    """Raise InputError unless `plan` is safe to apply to `device`, "cpu" or "cuda".

    It must verify, have requests to replay, be made for the device, and have offsets
    as torch wants them. `name` stands for it in messages.
    """
    violations = verify(plan)
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise InputError(
            f"{name} does not verify: {violations[0].message}{more}; "
            "solve the trace again"
        )
    if plan.hot.requests is None:
        raise InputError(
            f"{name} was made from a bare problem and has no requests to replay; "
            "record a program and solve its trace"
        )
    if plan.provenance.device != device:
        wanted = {"cpu": "the CPU", "cuda": "CUDA"}[device]
        raise InputError(
            f"{name} is for device {plan.provenance.device}, and this is {wanted}"
        )
    if any(
        (placed.problem.alignment % ALIGNMENT[device] != 0).any()
        for placed in plan.placements
    ):
        raise InputError(
            f"{name} has offsets that are not multiples of {ALIGNMENT[device]} bytes, "
            "as torch wants them; solve the trace again, without an alignment"
        )
    requests = [placed.requests for placed in plan.placements]
    if any((made.size == 0).any() for made in requests if made is not None):
        raise InputError(
            f"{name} has a request for 0 bytes, which no program makes; "
            "solve the trace again"
        )


def check_program(plan: Plan, running: Program, name: str) -> None:
    """Raise InputError unless `plan` was made for the program about to run.

    The same source or the same name will do: scripts get edited, and move. What
    they then ask for is matched request by request.
    """
    planned = plan.provenance.program
    same_source = bool(planned.sha256) and planned.sha256 == running.sha256
    if planned.script and not same_source and planned.script != running.script:
        raise InputError(
            f"{name} was made for {planned.script}, not for {running.script}; "
            f"record {running.script} and solve its trace"
        )
