"""A model as a Program by torch.export: for Python that tracing cannot follow."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.trace import has_hooks
from memplan.graph.export import NotExportableError, export
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.program import Op, Program, Ref, Step, mapped, refs, results

EXPORT_SECONDS = 60.0


def exported(model: Any, inputs: dict[str, Any], fixed: dict[str, Any]) -> Program:
    """`model` as a Program on inputs of these shapes; its outputs are the leaves of
    the model's, in order.

    inputs: tensors, by argument; fixed: the other arguments. Raises NotExportableError
    or another InputError where torch or `lower` cannot.
    """
    if any(has_hooks(module) for module in model.modules()):
        raise NotExportableError("it has modules with hooks")
    found = export(model, (), {**inputs, **fixed}, EXPORT_SECONDS)
    if found.constants:
        raise NotExportableError("its code makes tensors of its own")
    program = lower(found, Inference())
    names = dict(zip(program.inputs, _tensors(inputs, fixed), strict=True))
    return _renamed(program, names)


def _tensors(inputs: dict[str, Any], fixed: dict[str, Any]) -> list[str]:
    """Names of the tensors in the order in which the call flattens."""
    return [name for name in {**inputs, **fixed} if name in inputs]


def _renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with its inputs named as the arguments are."""

    def change(ref: Any) -> Any:
        return Ref(names.get(ref.name, ref.name))

    ops: list[Step] = []
    for op in program.ops:
        assert isinstance(op, Op)
        args, kwargs = mapped((op.args, op.kwargs), change)
        ops.append(Op(op.name, op.target, args, kwargs, op.line))
    clash = {name for op in ops for name in results(op)} & set(names.values())
    if clash or set(refs(program.outputs)) & clash:
        raise NotExportableError(f"its values {', '.join(sorted(clash))} clash")
    return Program(
        [names[name] for name in program.inputs],
        dict(program.constants),
        ops,
        mapped(program.outputs, change),
        {},
        {},
    )
