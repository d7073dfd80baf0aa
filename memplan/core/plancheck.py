"""What a plan must be before a file can hold it, whether or not it verifies."""

from __future__ import annotations

import numpy as np

from memplan.core.placement import Placement, Requests, StepKind, Warmup
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.errors import FormatError
from memplan.formats.strictjson import shown
from memplan.formats.table import is_text
from memplan.limits import MAX_INTEGER, MAX_LANES, MAX_TEXT, MAX_TOTAL_BYTES


def check_structure(plan: Plan, path: object, remedy: str = "") -> None:
    """Raise FormatError naming what in `plan` does not fit together.

    Offsets and labels must belong to the buffers, requests must serve each buffer
    once and in the order of the clock, and a warm-up must lie before the hot steps.
    """
    problem = _misfit(plan.hot)
    if not problem and plan.warmup is not None:
        before = plan.warmup
        problem = _misfit(before)
        problem = f"warm-up: {problem}" if problem else _warmup_misfit(plan, before)
    for number, kind in enumerate(plan.kinds):
        problem = problem or _kind_misfit(kind, number)
    if not problem and plan.elastic and plan.hot.requests is None:
        problem = "an elastic plan must list its requests"
    if not problem and plan.lifespan_bytes:
        problem = _lifespan_misfit(plan)
    if not problem and plan.lanes:
        problem = _lanes_misfit(plan)
    if problem:
        raise FormatError(path, problem, remedy)


def _lifespan_misfit(plan: Plan) -> str:
    if plan.provenance.device != "cuda":
        return "lifespan_bytes is of CUDA memory, and this plan is not"
    if plan.hot.requests is None:
        return "a plan with lifespan_bytes must list its requests"
    return ""


def _lanes_misfit(plan: Plan) -> str:
    if not 0 < plan.lanes <= MAX_LANES:
        return f"lanes is {plan.lanes}, and must be 1 to {MAX_LANES}"
    if plan.hot.requests is None:
        return "a plan with lanes must list its requests"
    return "" if plan.warmup is None else "a plan with lanes has no warm-up"


def _misfit(placed: Placement) -> str:
    problem, offsets = placed.problem, placed.offsets
    if len(offsets) != len(problem):
        return f"{len(offsets)} offsets for {len(problem)} buffers"
    outside = (offsets < 0) | (offsets > MAX_TOTAL_BYTES - problem.size)
    if outside.any():
        i = int(np.argmax(outside))
        name, offset = problem.label(i), int(offsets[i])
        return f"buffer {name}: offset {offset} does not lie between 0 and 2^62 bytes"
    if placed.requests is not None:
        return _requests_misfit(problem, placed.requests)
    return "" if problem.labels is None else _labels_misfit(problem.labels)


def _labels_misfit(labels: tuple[str, ...]) -> str:
    if (
        {str}.issuperset(map(type, labels))
        and len(set(labels)) == len(labels)
        and max(map(len, labels), default=0) <= MAX_TEXT
        and "".join(labels).isascii()
    ):
        return ""  # as nearly always: a million of them one by one take a while
    seen: set[str] = set()
    for label in labels:
        if not isinstance(label, str) or not is_text(label):
            return f"label {shown(label)} is not text of at most {MAX_TEXT} characters"
        if label in seen:
            return f"two buffers have the label {shown(label)}"
        seen.add(label)
    return ""


def _requests_misfit(problem: Problem, requests: Requests) -> str:
    if problem.gaps is not None:
        # A program may read at any time what it has not freed.
        name = problem.label(int(problem.gaps.buffer[0]))
        return f"buffer {name} has gaps, which a recorded program's buffers never have"
    if len(problem) and problem.rounding != problem.granularity:
        return (
            f"buffers that serve requests take up multiples of {problem.granularity} "
            f"bytes, as their offsets are, and not of {problem.rounding}"
        )
    count, starts = len(requests), requests.starts
    if len(requests.buffer) != count:
        return f"{count} request sizes for {len(requests.buffer)} requests"
    if starts[:1] != (0,) or list(starts) != sorted(starts) or starts[-1] > count:
        return (
            f"starts must ascend from 0 to at most {count}, the number of requests, "
            f"and are {shown(', '.join(map(str, starts[:8])))}"
        )
    if (requests.size < 0).any():
        i = int(np.argmax(requests.size < 0))
        return f"request {i} asks for {int(requests.size[i])} bytes"
    return _service_misfit(problem, requests)


def _service_misfit(problem: Problem, requests: Requests) -> str:
    planned = np.flatnonzero(requests.planned)
    served, sizes = requests.buffer[planned], requests.size[planned]
    if not np.array_equal(np.sort(served), np.arange(len(problem))):
        return f"the {len(problem)} buffers do not serve one request each"
    other = sizes != problem.size[served]
    if other.any():
        i = int(np.argmax(other))
        asked, held = int(sizes[i]), int(problem.size[served[i]])
        return f"request {planned[i]} asks for {asked} bytes, its buffer holds {held}"
    # Where the clock does not tell two requests apart, their rows do.
    back = np.lexsort((served, problem.lower[served])) != np.arange(len(served))
    if back.any():
        return f"request {planned[np.argmax(back)]} is out of the order of the clock"
    return ""


def _kind_misfit(kind: StepKind, number: int) -> str:
    problem = _misfit(kind)
    if not problem and kind.problem.length is not None:
        problem = "its clock must be linear, and has a length"
    if not problem and kind.requests.starts != (0,):
        problem = "it must be one step, and has more starts than one"
    return f"kind {number}: {problem}" if problem else ""


def _warmup_misfit(plan: Plan, warmup: Warmup) -> str:
    hot, before, ticks = plan.problem, warmup.problem, warmup.ticks
    if before.length is not None:
        return "warm-up: its clock must be linear, and has a length"
    late = before.lower >= ticks
    if late.any():
        i = int(np.argmax(late))
        name, lower = before.label(i), int(before.lower[i])
        return f"warm-up: buffer {name}: lower {lower} is not before ticks {ticks}"
    # Python's integers: the sum must not wrap around before it is compared.
    end = ticks + (hot.length or 0) + int(hot.upper.max(initial=0))
    if ticks < 0 or end > MAX_INTEGER:
        return f"warm-up: ticks {ticks} is negative, or too large for the clock"
    return ""
