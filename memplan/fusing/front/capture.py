"""A model as a Program: by symbolic tracing, or else by torch.export."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from memplan.errors import InputError
from memplan.graph.export import NotExportableError, export
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.nest import Tensors, bytes_of, leaves_of, storages
from memplan.graph.program import Meta, Op, Program, Ref, Step, mapped, refs, results
from memplan.graph.weights import fetch, has_hooks


class NotTraceableError(InputError):
    """Symbolic tracing cannot follow the model's code."""


def trace(model: torch.nn.Module, fixed: dict[str, object]) -> Program:
    """`model` as a Program of its forward's arguments but those in `fixed`.

    fixed: arguments that are no tensors, by name; the program is for these values.
    Modules of torch.nn are called whole, and so are those that have hooks. Raises
    NotTraceableError, in one line, where the model cannot be traced.
    """
    here = threading.get_ident()

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        # What is computed of buffers is computed at every call, not once.
        proxy_buffer_attributes = True

        def is_leaf_module(self, module: torch.nn.Module, path: str) -> bool:
            return has_hooks(module) or super().is_leaf_module(module, path)

        # While this traces, torch.fx has all modules of the process call here: those of
        # other threads run as they are.
        def call_module(
            self, m: object, forward: Any, args: Any, kwargs: Any
        ) -> object:
            if threading.get_ident() != here:
                return forward(*args, **kwargs)
            return super().call_module(m, forward, args, kwargs)

        def getattr(self, attr: str, attr_val: object, cache: object) -> object:
            if threading.get_ident() != here:
                return attr_val
            return super().getattr(attr, attr_val, cache)

        def create_arg(self, value: object) -> object:
            # Those that the code makes would become attributes of the user's model.
            if isinstance(value, torch.Tensor) and not self._belongs(value):
                return self.create_node("call_function", HeldTensor(value), (), {})
            return super().create_arg(value)

        def _belongs(self, value: object) -> bool:
            tensors = (*self.root.parameters(), *self.root.buffers())
            known = value in self.tensor_attrs  # by identity
            return known or any(value is each for each in tensors)

    try:
        graph = Tracer(autowrap_functions=()).trace(model, dict(fixed))
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else ""
        raise NotTraceableError(
            f"its code cannot be traced: {type(error).__name__}: {reason}"
        ) from error
    return _program(graph, model, fixed)


def _program(
    graph: torch.fx.Graph, model: torch.nn.Module, fixed: dict[str, object]
) -> Program:
    program = Program([], {}, [], None, {}, {})
    values: dict[torch.fx.Node, object] = {}  # fx node -> Ref, or a plain value

    def argument(value: object) -> Any:
        return torch.fx.node.map_arg(value, lambda node: values[node])

    names = iter(inspect.signature(model.forward).parameters)
    for node in graph.nodes:
        if node.op == "placeholder":  # they stand in the order of the arguments
            name = next(names)
            if str(node.target).startswith("*"):
                if node.users:
                    raise NotTraceableError(f"its code uses {node.target}")
                continue
            if name in fixed:
                values[node] = fixed[name]
                continue
            program.inputs.append(name)
            values[node] = Ref(name)
        elif node.op == "get_attr":
            program.constants[node.name] = str(node.target)
            values[node] = Ref(node.name)
        elif node.op == "output":
            program.outputs = argument(node.args[0])
        elif getattr(node.target, "__name__", "") not in CHECKS:
            target, where = _called(node, model)
            arguments = argument(node.args), argument(node.kwargs)
            program.ops.append(Op(node.name, target, *arguments, line=where))
            values[node] = Ref(node.name)
            if node.args and overwrites(target, node.kwargs):
                _supersede(values, values.get(node.args[0]), Ref(node.name))
    return program


def _supersede(values: dict[torch.fx.Node, object], old: object, new: Ref) -> None:
    """Replace an overwritten value under all of its names."""
    if isinstance(old, Ref):
        values.update((node, new) for node, value in values.items() if value == old)


def _called(
    node: torch.fx.Node, model: torch.nn.Module
) -> tuple[Callable[..., Any], str]:
    """What a node calls, and where: the module's path, or that of the one it is in."""
    stack = node.meta.get("nn_module_stack") or {}
    inside = list(stack)[-1] if stack else ""
    if node.op == "call_module":
        return model.get_submodule(node.target), str(node.target)
    if node.op == "call_method":
        return Method(str(node.target)), str(inside)
    return node.target, str(inside)


class HeldTensor:
    """A tensor that the model's code created during tracing, as a function."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__name__ = "held"
        self.tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self.tensor


class Method:
    """A method of the first argument, as a function; `__name__` is the method's."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, owner: object, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self.__name__)(*args, **kwargs)


def overwrites(target: object, kwargs: dict[str, object]) -> bool:
    """Whether a call writes its result over its first argument."""
    if isinstance(target, torch.nn.Module):
        return bool(getattr(target, "inplace", False))
    if kwargs.get("inplace"):
        return True
    if isinstance(target, HeldTensor):
        return False
    name = str(getattr(target, "__name__", target))
    if getattr(target, "__module__", "") == "_operator":
        return name in AUGMENTED
    return name.endswith("_") and not name.endswith("__")


CHECKS = {"_assert", "_assert_is_none"}  # of what is fixed
AUGMENTED = {
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "imatmul", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
}


EXPORT_SECONDS = 60.0


def exported(
    model: torch.nn.Module, inputs: Tensors, fixed: dict[str, object]
) -> Program:
    """`model` as a Program on inputs of these shapes; its outputs are the leaves of
    the model's, in order.

    inputs: tensors, by argument; fixed: the other arguments. Raises NotExportableError
    or another InputError where torch or `lower` cannot.
    """
    if any(has_hooks(module) for module in model.modules()):
        raise NotExportableError("it has modules with hooks")
    found = export(model, (), {**inputs, **fixed}, EXPORT_SECONDS)
    if found.constants:
        raise NotExportableError("its code creates tensors")
    program = lower(found, Inference())
    given = [name for name in {**inputs, **fixed} if name in inputs]
    names = dict(zip(program.inputs, given, strict=True))
    return _renamed(program, names)


def _renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with its inputs named as the arguments are."""

    def change(ref: Ref) -> Ref:
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


def interpret(
    program: Program, model: torch.nn.Module, inputs: Tensors
) -> tuple[object, int]:
    """The outputs of `program` on `inputs`, and the bytes of its values at their peak;
    fills its metas in on the way.

    A value is let go after its last use, so that this takes the memory that the model
    takes. Raises NotTraceableError where an operator writes to memory that something
    else than its own first argument lies in, which is then another value too.
    """
    last = last_uses(program)
    values = dict(inputs)
    values.update(
        (name, fetch(model, place)) for name, place in program.constants.items()
    )
    for name, value in values.items():
        _note(program, name, value)
    given, peak = storages(values.values()), 0
    for index, op in enumerate(program.ops):
        assert isinstance(op, Op)
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
        taken = _tensors((args, kwargs))
        versions = [each._version for each in taken]
        values[op.name] = op.target(*args, **kwargs)
        if versions != [each._version for each in taken]:
            _refuse_aliases(program, op, values, kwargs)
        _note(program, op.name, values[op.name])
        peak = max(peak, bytes_of(values.values(), given))
        for name in last[index]:
            values.pop(name, None)
    return mapped(program.outputs, lambda ref: values[ref.name]), peak


def _tensors(value: object) -> list[torch.Tensor]:
    return [
        each
        for each in leaves_of(value)
        if isinstance(each, torch.Tensor) and not each.is_inference()
    ]


def _refuse_aliases(
    program: Program, op: Op, values: dict[str, object], kwargs: dict[str, object]
) -> None:
    """Raise unless an operator wrote to its first argument alone."""
    where = op.line or op.name
    first = op.args[0] if op.args else None
    if not isinstance(first, Ref) or not overwrites(op.target, kwargs):
        raise NotTraceableError(f"{where}: {op.key} writes to its inputs")
    if first.name in program.inputs or first.name in program.constants:
        raise NotTraceableError(f"{where}: {op.key} writes to {first.name}")
    written = storages([values[first.name]])
    if storages([values[op.name]]) != written:
        raise NotTraceableError(f"{where}: {op.key} writes to its inputs")
    others = [
        value for name, value in values.items() if name not in (first.name, op.name)
    ]
    targets = [each.target for each in program.ops if isinstance(each, Op)]
    others += [each.tensor for each in targets if isinstance(each, HeldTensor)]
    if storages(others) & written:
        raise NotTraceableError(
            f"{where}: {op.key} writes to memory that another value shares"
        )


def last_uses(program: Program) -> list[list[str]]:
    """For every operator, the values that are dead after it."""
    kept = set(refs(program.outputs)) | set(program.inputs) | set(program.constants)
    last: list[list[str]] = [[] for _ in program.ops]
    for index in reversed(range(len(program.ops))):
        op = program.ops[index]
        for name in (*op.operands(), *results(op)):
            if name not in kept:
                kept.add(name)
                last[index].append(name)
    return last


def _note(program: Program, name: str, value: object) -> None:
    if isinstance(value, torch.Tensor):
        program.metas[name] = Meta(
            tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device)
        )
    else:
        program.metas[name] = None
