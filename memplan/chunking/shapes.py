"""A chunked module on inputs of other sizes: the same regions, without a search.

The step of a loop fits the budget at the sizes of the search. If the model runs the
same operators on smaller inputs, the same step fits too, with fewer iterations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from math import lcm

from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.module import Chunk
from memplan.chunking.options import BudgetError
from memplan.chunking.plan import ChunkPlan, Part
from memplan.chunking.recompute import again
from memplan.chunking.region import NotLoopableError, Region, call_of, chunked
from memplan.chunking.rules.flow import Slice
from memplan.chunking.rules.table import flow
from memplan.chunking.rules.totals import Accumulation
from memplan.chunking.trial import Trial
from memplan.chunking.workbench import Workbench
from memplan.errors import InputError
from memplan.graph.call import Form, Inputs
from memplan.graph.capture import (
    Change,
    Exports,
    Target,
    capture,
    check_modules,
    export_parts,
)
from memplan.graph.check import aloud, undone
from memplan.graph.export import NotExportableError
from memplan.graph.infer import Inference
from memplan.graph.liveness import profile
from memplan.graph.program import Meta, Metas, Op, Program
from memplan.graph.sizes import (
    Dims,
    OpenTarget,
    named_alike,
    open_dims,
    opened,
    shapes_of,
)
from memplan.units import format_bytes

ALONE = "exporting for these sizes alone"
HALVINGS = 6  # of steps, if those of the plan exceed the budget
SLACK = 1.05  # other sizes may need this much more than the first


class OtherSizes:
    """Builds chunks for inputs of other sizes."""

    def __init__(
        self,
        programs: dict[str, Program],
        first: Form,
        seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        """programs: path of each part -> its operators at the sizes of the search.
        first: of the inputs of the search. seconds: that an export took."""
        self._programs, self._first, self._progress = programs, first, progress
        self._seconds = seconds
        self._open: list[OpenTarget] = []  # the model with sizes left open
        self._tried: dict[Dims, int] = {}  # how often these were

    def __deepcopy__(self, memo: object) -> OtherSizes:
        """For a copy of the model."""
        return OtherSizes(self._programs, self._first, self._seconds, self._progress)

    def chunks(
        self, model: nn.Module, plan: ChunkPlan, inputs: Inputs, smaller: bool
    ) -> dict[str, Chunk]:
        """What replaces each part of `model` on these inputs, checked and measured as
        after a search; {} if the model fits the budget unchanged.

        smaller: whether no size is above those of the plan.
        Raises InputError for inputs that need more than those of the plan, and if other
        operators run; BudgetError if the regions exceed the budget.
        """
        progress = aloud(self._progress)
        with undone(model, inputs) as put_back:
            return self._chunks(model, plan, inputs, smaller, progress, put_back)

    def _chunks(
        self,
        model: nn.Module,
        plan: ChunkPlan,
        inputs: Inputs,
        smaller: bool,
        progress: Callable[[str], None],
        put_back: Callable[[], None],
    ) -> dict[str, Chunk]:
        exports = None
        if not smaller:  # it runs only if that needs no more than at the first sizes
            exports = self._exports(model, inputs, progress)
            self._check_size(exports, plan)
        bench = Workbench(model, inputs, progress, observe=False)
        put_back()  # else what its runs changed is no change in the next one
        if bench.before <= plan.budget_bytes:
            return {}
        bench.exports = exports or self._exports(model, inputs, progress)
        try:
            return self._looped(model, bench, plan)
        except (InputError, BudgetError) as error:
            if not any(each.conditions for each in bench.exports.targets):
                raise
            progress(f"{ALONE}: {error}")
        bench = Workbench(model, inputs, progress, observe=False)
        put_back()
        bench.exports = export_parts(model, inputs, searchable)
        return self._looped(model, bench, plan)

    def _looped(
        self, model: nn.Module, bench: Workbench, plan: ChunkPlan
    ) -> dict[str, Chunk]:
        """The plan's regions for what `bench` has exports of."""
        exports, budget, lowest = bench.exports, plan.budget_bytes, bench.before
        why = "no step is small enough"
        for halvings in range(HALVINGS):
            try:
                trials = self._trials(exports, plan.parts, halvings)
            except NotLoopableError as error:
                why = str(error)
                continue
            outside = {target.path: target.outside for target in exports.targets}
            if any(outside[path] + each.peak > budget for path, each in trials.items()):
                continue
            module = bench.build(trials, budget)
            if module is None:
                why = bench.rejections[-1]
                continue
            lowest = min(lowest, module.memplan.measured_bytes_after)
            if lowest <= budget:
                return dict(module.chunks)
        raise BudgetError(
            "the plan's regions exceed its budget of "
            f"{format_bytes(budget)} on inputs of these sizes ({why}); chunk the model "
            "with them",
            lowest,
            "",
            model,
        )

    def _exports(
        self, model: nn.Module, inputs: Inputs, progress: Callable[[str], None]
    ) -> Exports:
        """The model's parts on these inputs. The whole model is exported once for all
        sizes, where torch makes that and they run the same operators."""

        def whole(
            module: nn.Module, inputs: Inputs, inference: Inference, change: Change
        ) -> Target:
            check_modules(module)
            try:
                return self._without_export(module, inputs, inference)
            except InputError as error:
                progress(f"{ALONE}: {error}")
            return capture(module, inputs, inference, change)

        has_whole = list(self._programs) == [""]
        return export_parts(model, inputs, searchable, whole if has_whole else capture)

    def _without_export(
        self, model: nn.Module, inputs: Inputs, inference: Inference
    ) -> Target:
        same = [each for each in self._open if each.same(model)]
        if len(same) < len(self._open):
            self._open, self._tried = same, {}
        why: InputError = NotExportableError("no export has these sizes open")
        for each in self._open:
            try:
                return self._at(each, inputs, inference)
            except InputError as error:
                why = error
        form = Form.of(inputs)
        if form.same:
            raise NotExportableError("some arguments are one tensor")
        dims = open_dims(self._first, form)
        shapes = [
            shapes
            for shapes in map(shapes_of, (self._first, form))
            if all(shapes[i][dim] > 1 for i, dim in dims)
        ]
        tried = self._tried.get(dims, 0)
        if tried >= len(shapes):
            raise why
        if threading.current_thread() is not threading.main_thread():
            raise NotExportableError("only in the main thread can torch be interrupted")
        try:
            found = opened(model, inputs, shapes[tried], dims, self._seconds)
        except InputError:
            self._tried[dims] = len(shapes)
            raise
        self._tried[dims] = tried + 1
        self._open.append(found)
        return self._at(found, inputs, inference)

    def _at(self, found: OpenTarget, inputs: Inputs, inference: Inference) -> Target:
        target = found.at(inputs, inference, searchable)
        program = named_alike(target.program, self._programs[""], inference)
        if program is None:
            raise NotExportableError("the model runs other operators")
        return replace(target, program=program)

    def _check_size(self, exports: Exports, plan: ChunkPlan) -> None:
        needed = max(
            (
                target.outside + profile(target.program, overwriting=False).peak
                for target in exports.targets
            ),
            default=0,
        )
        if needed > SLACK * plan.peak_bytes_before:
            raise InputError(
                f"inputs of these sizes need {format_bytes(needed)}, more than the "
                f"{format_bytes(plan.peak_bytes_before)} of those that the model was "
                "chunked for; chunk it with the largest"
            )

    def _trials(
        self, exports: Exports, parts: tuple[Part, ...], halvings: int
    ) -> dict[str, Trial]:
        targets = {target.path: target for target in exports.targets}
        return {
            part.path: self._trial(targets.get(part.path), part, exports, halvings)
            for part in parts
        }

    def _trial(
        self, target: Target | None, part: Part, exports: Exports, halvings: int
    ) -> Trial:
        old = self._programs[part.path]
        if target is None or not same_operators(part, old, target.program):
            raise InputError(
                "the model runs other operators on inputs of these sizes"
                + (f" in {part.path}" if part.path else "")
                + "; chunk it with them"
            )
        return resized(part, old, target.program, exports.inference, halvings)


def resized(
    of: Part | Trial, old: Program, new: Program, inference: Inference, halvings: int
) -> Trial:
    """The regions of a program, and what it computes again, in one of the same
    operators on other sizes; see `at_sizes`."""
    old, new = again(old, of.again), again(new, of.again)
    program = new
    regions = []
    for region in of.regions:
        found = at_sizes(region, old, new, halvings)
        if found is not None:
            program = chunked(program, found, inference)
            regions.append(found)
    return Trial(tuple(regions), program, again=of.again)


def at_sizes(
    region: Region, old: Program, new: Program, halvings: int = 0
) -> Region | None:
    """The region, of `old`, in a program of the same operators on other sizes, its step
    halved some times; None if it is then a single iteration.

    Raises NotLoopableError where the loop's extent does not follow from the sizes.
    """
    extent = _extent(region, old, new)
    granule = lcm(*(piece.ratio.denominator for piece in region.slices.values()))
    step = max(granule, (region.step >> halvings) // granule * granule)
    if step >= extent:
        return None
    inner = (at_sizes(each, old, new, halvings) for each in region.inner)
    kept = tuple(each for each in inner if each is not None)
    return replace(region, extent=extent, step=step, inner=kept)


def _extent(region: Region, old: Program, new: Program) -> int:
    """What the loop runs over: the size of a dimension that it covers, by its ratio."""
    for name, piece in region.slices.items():
        outer = name
        while outer not in old.metas and outer.endswith("_i"):
            outer = outer.removesuffix("_i")
        before, after = old.metas.get(outer), new.metas.get(outer)
        if piece.total:
            sizes = _reduced(old, outer, piece), _reduced(new, outer, piece)
            if region.extent * piece.ratio == sizes[0] and sizes[1]:
                return int(sizes[1] / piece.ratio)
            continue
        if not isinstance(before, Meta) or not isinstance(after, Meta):
            continue
        if region.extent * piece.ratio == before.shape[piece.dim]:
            extent = after.shape[piece.dim] / piece.ratio
            if extent.denominator == 1:
                return int(extent)
    raise NotLoopableError("a loop's extent does not follow from the sizes")


def _reduced(program: Program, name: str, piece: Slice) -> int:
    """The size of the dimension that a total is over; 0 where there is none."""
    for op in program.ops:
        if isinstance(op, Op) and op.name == name:
            found = flow(call_of(program, op, ""), piece)
            return found.size if isinstance(found, Accumulation) else 0
    return 0


def same_operators(of: Part | Trial, old: Program, new: Program) -> bool:
    """Whether what the regions hold, and what is computed again, is in both programs.

    Others may differ, as views that only some sizes need.
    """
    before, now = _operators(old), _operators(new)
    wanted = {name for region in of.regions for name in region.slices}
    wanted.update(*(region.whole for region in of.regions), of.again)
    return all(before[name] == now.get(name) for name in wanted & before.keys())


def _operators(program: Program) -> dict[str, object]:
    """Of each operator by its name: what is called, and how many dimensions it has."""
    return {
        op.name: (op.target, _dimensions(program.metas[op.name]))
        for op in program.ops
        if isinstance(op, Op)
    }


def _dimensions(meta: Metas) -> object:
    return len(meta.shape) if isinstance(meta, Meta) else tuple(map(_dimensions, meta))
