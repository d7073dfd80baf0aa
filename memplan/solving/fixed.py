"""Fixed offsets: they must not collide before anything is placed around them."""

from __future__ import annotations

from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import NoPlanError
from memplan.limits import MAX_TOTAL_BYTES


def refuse_collisions(problem: Problem) -> None:
    """Raise NoPlanError if two buffers collide at their fixed offsets, naming them."""
    chosen = (problem.fixed != FREE).nonzero()[0]
    if not len(chosen):
        return
    fixed = Problem.of(
        problem.lower[chosen],
        problem.upper[chosen],
        problem.size[chosen],
        length=problem.length,
        labels=[problem.label(i) for i in chosen.tolist()],
        gaps=None if problem.gaps is None else problem.gaps.among(chosen),
    )
    collisions = verify_offsets(fixed, problem.fixed[chosen], 2 * MAX_TOTAL_BYTES)
    if collisions:
        raise NoPlanError(
            f"{collisions[0].message}: no plan can hold both at their fixed offsets"
        )
