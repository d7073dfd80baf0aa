"""The regions of a plan that was made before, on a model that is exported now."""

from __future__ import annotations

from memplan.chunking.notaloop import NotALoopError
from memplan.chunking.parts import Exports
from memplan.chunking.plan import ChunkPlan, fingerprint
from memplan.chunking.region import chunked
from memplan.chunking.search import Trial
from memplan.errors import InputError
from memplan.graph.liveness import profile


def trials_of(plan: ChunkPlan, name: str, exports: Exports) -> dict[str, Trial]:
    """The trial of each part of `plan`, whose file is called `name`.

    Raises InputError if the plan is of another model or other shapes, or does not fit.
    """
    targets = {target.path: target for target in exports.targets}
    trials = {}
    for part in plan.parts:
        target = targets.get(part.path)
        if target is None or fingerprint(target.program) != part.fingerprint:
            raise InputError(
                f"{name} was made of another model, of other shapes, or with "
                f"another torch ({plan.torch}); chunk this model with --budget"
            )
        program = target.program
        try:
            for region in part.regions:
                program = chunked(program, region, exports.inference)
        except NotALoopError as error:
            raise InputError(
                f"{name} does not fit this model: {error}; make it anew"
            ) from error
        trials[part.path] = Trial(part.regions, program, profile(program))
    return trials
