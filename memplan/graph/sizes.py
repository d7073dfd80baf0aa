"""A model captured once with sizes of its inputs left open, for any that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.graph.build import Builder
from memplan.graph.call import Form, Inputs, order_of
from memplan.graph.capture import Change, Target, as_lowered, exported_from
from memplan.graph.export import Exported, NotExportableError
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.nest import Kind, Rebuild
from memplan.graph.program import Op, Program, Ref, mapped
from memplan.graph.weights import Watch

if TYPE_CHECKING:
    from sympy import Symbol

LEAST_SECONDS, AS_LONG = 4.0, 4.0

Symbols = torch.SymInt | torch.SymFloat | torch.SymBool


@dataclass(frozen=True)
class OpenTarget:
    """A whole model as `torch.export` gives it with symbols for sizes.

    form: of the inputs that it was exported with. watch: of the model since then.
    weights: what parameters and buffers were like.
    """

    module: nn.Module
    form: Form
    exported: Exported
    rebuild: Rebuild
    watch: Watch
    weights: dict[str, Kind]

    def same(self, module: nn.Module) -> bool:
        """Whether it is this module, with attributes as they were, and weights of the
        same shapes and types. What its code finds elsewhere may have changed."""
        kept = self.watch.same()
        return module is self.module and kept and _kinds(module) == self.weights

    def at(
        self, inputs: Inputs, inference: Inference, change: Change = as_lowered
    ) -> Target:
        """The model captured for such inputs, without an export.

        Raises NotExportableError where they do not meet its conditions, and so other
        operators may run for them.
        """
        form = Form.of(inputs)
        if not form.alike(self.form):
            raise NotExportableError("these inputs differ in more than sizes")
        exported = sized(self.exported, inputs.tensors())
        program = change(lower(exported, inference), inference)
        given = "", self.module, exported.constants, program, form, self.rebuild
        conditions, seconds = exported.conditions, exported.seconds
        return Target(
            *given, conditions=conditions, seconds=seconds, inference=inference
        )


Dims = frozenset[tuple[int, int]]  # which of the inputs' tensors, and its dimension
Shapes = list[tuple[int, ...]]


def open_dims(first: Form, other: Form) -> Dims:
    """The dimensions in which two forms differ that are alike."""
    pairs = zip(shapes_of(first), shapes_of(other), strict=True)
    return frozenset(
        (i, dim)
        for i, (before, now) in enumerate(pairs)
        for dim, size in enumerate(before)
        if size != now[dim]
    )


def shapes_of(form: Form) -> Shapes:
    """Of the tensors among the inputs."""
    return [each.shape for each in form.leaves if isinstance(each, Kind)]


def opened(
    module: nn.Module, inputs: Inputs, shapes: Shapes, dims: Dims, seconds: float
) -> OpenTarget:
    """Export a model with some dimensions of its inputs open.

    shapes: that it is exported with, for inputs like these; open sizes are at least 2,
    as torch takes others for fixed. seconds: of an export for one size; conditions on
    symbols can make this one take a hundred times as long, so that it ends at AS_LONG
    times that. Raises NotExportableError where torch cannot.
    """
    most = LEAST_SECONDS + AS_LONG * seconds
    # Others than the caller's: torch marks them.
    given = [_empty(*each) for each in zip(inputs.tensors(), shapes, strict=True)]
    sizes = [(x, {dim for at, dim in dims if at == i}) for i, x in enumerate(given)]
    inputs = inputs.with_tensors(given)
    exported, rebuild = exported_from(module, inputs, sizes=sizes, seconds=most)
    watch, weights = Watch(module, ()), _kinds(module)
    return OpenTarget(module, Form.of(inputs), exported, rebuild, watch, weights)


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    last = order_of(like) == "last"
    order = torch.channels_last if last else torch.contiguous_format
    kind = {"dtype": like.dtype, "device": like.device}
    return torch.empty(shape, **kind, memory_format=order)


def _kinds(module: nn.Module) -> dict[str, Kind]:
    tensors = *module.named_parameters(), *module.named_buffers()
    return {name: Kind.of(each) for name, each in tensors}


def sized(exported: Exported, tensors: Sequence[Tensor]) -> Exported:
    """An export whose symbols are replaced by the sizes of these inputs.

    Raises NotExportableError if a condition of the export is not true of them.
    """
    sizes = _sizes(exported, tensors)
    for condition in exported.conditions:
        if condition.xreplace(sizes) != True:  # noqa: E712, one with symbols left is not
            raise NotExportableError(f"it was exported for sizes with {condition}")
    graph, made = fx.Graph(), dict[fx.Node, Any]()
    with FakeTensorMode(allow_non_fake_inputs=True):

        def value(of: Any) -> Any:
            if isinstance(of, Symbols):
                found = of.node.expr.xreplace(sizes)
                return of.node.pytype(found)
            if isinstance(of, Tensor):
                shape, strides = value(tuple(of.shape)), value(of.stride())
                return torch.empty_strided(
                    shape, strides, dtype=of.dtype, device=of.device
                )
            if isinstance(of, tuple | list):
                return type(of)(value(each) for each in of)
            return of

        for node in exported.graph.nodes:
            here = node.meta.get("val")
            if isinstance(here, Symbols):
                made[node] = value(here)
                continue
            copy = made[node] = graph.node_copy(node, made.__getitem__)
            copy.meta["val"] = value(here)
    return replace(exported, graph=graph)


def _sizes(exported: Exported, tensors: Sequence[Tensor]) -> dict[Symbol, int]:
    """The size that each symbol stands for, given the inputs."""
    inputs = set(exported.signature.user_inputs)
    found: dict[Symbol, int] = {}
    of = [
        value
        for node in exported.graph.nodes
        if node.name in inputs and isinstance(value := node.meta.get("val"), Tensor)
    ]
    pairs = [
        (size if isinstance(size, int) else size.node.expr, given)
        for here, tensor in zip(of, tensors, strict=True)
        for size, given in zip(here.shape, tensor.shape, strict=True)
    ]
    for size, given in pairs:
        if getattr(size, "is_symbol", False):
            found.setdefault(size, given)
    for size, given in pairs:
        if given != (size if isinstance(size, int) else size.xreplace(found)):
            raise NotExportableError(
                f"it was exported for a size of {size}, not {given}"
            )
    return found


def named_alike(new: Program, old: Program, inference: Inference) -> Program | None:
    """`new` with the names that `old` has for its values; None unless the same
    operators take the same values in both."""
    if len(new.ops) != len(old.ops) or new.constants != old.constants:
        return None
    names = dict(zip(new.inputs, old.inputs, strict=True))
    metas = {now: new.metas[name] for name, now in names.items()}
    source = replace(new, inputs=[*old.inputs], metas={**new.metas, **metas})
    written = Builder(source, inference)
    for step, like in zip(new.ops, old.ops, strict=True):
        if not isinstance(step, Op) or not isinstance(like, Op):
            return None
        args, kwargs = _renamed((step.args, step.kwargs), names)
        made = Op(like.name, step.target, args, kwargs, step.line)
        if made.target is not like.target or made.operands() != like.operands():
            return None
        written.append(made)
        names[step.name] = like.name
    written.program.outputs = _renamed(new.outputs, names)
    written.program.modules = {
        names.get(name, name): path for name, path in new.modules.items()
    }
    return written.program


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return mapped(value, lambda ref: Ref(names.get(ref.name, ref.name)))
