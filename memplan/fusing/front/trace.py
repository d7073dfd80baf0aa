"""A model as a Program by symbolic tracing: torch.nn's modules stay whole in it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from memplan.errors import InputError
from memplan.graph.program import Op, Program, Ref


class NotTraceableError(InputError):
    """The model's code asks for values, or for what tracing does not know."""


def trace(model: Any, fixed: dict[str, Any]) -> Program:
    """`model` as a Program of its forward's arguments but those in `fixed`.

    fixed: arguments that are no tensors, by name; the program is for these values.
    Modules of torch.nn are called whole, and so are those that have hooks. Raises
    NotTraceableError, in one line, where the model cannot be traced.
    """
    import torch.fx

    here = threading.get_ident()

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        # What is computed of buffers is computed at every call, and not once.
        proxy_buffer_attributes = True

        def is_leaf_module(self, module: Any, path: str) -> bool:
            return has_hooks(module) or super().is_leaf_module(module, path)

        # While this traces, torch.fx has all modules of the process call here: those of
        # other threads run as they are.
        def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != here:
                return forward(*args, **kwargs)
            return super().call_module(m, forward, args, kwargs)

        def getattr(self, attr: str, attr_val: Any, cache: Any) -> Any:
            if threading.get_ident() != here:
                return attr_val
            return super().getattr(attr, attr_val, cache)

        def create_arg(self, value: Any) -> Any:
            # Those that the code makes would become attributes of the user's model.
            if isinstance(value, torch.Tensor) and not self._belongs(value):
                return self.create_node("call_function", Held(value), (), {})
            return super().create_arg(value)

        def _belongs(self, value: Any) -> bool:
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


def has_hooks(module: Any) -> bool:
    """Whether calling a module runs more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _program(graph: Any, model: Any, fixed: dict[str, Any]) -> Program:
    program = Program([], {}, [], None, {}, {})
    values: dict[Any, Any] = {}  # fx node -> Ref, or a plain value

    def argument(value: Any) -> Any:
        import torch.fx

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


def _supersede(values: dict[Any, Any], old: Any, new: Ref) -> None:
    """From here on what a value was is gone, under all the names that it has."""
    if isinstance(old, Ref):
        values.update((node, new) for node, value in values.items() if value == old)


def _called(node: Any, model: Any) -> tuple[Callable[..., Any], str]:
    """What a node calls, and where: the module's path, or that of the one it is in."""
    stack = node.meta.get("nn_module_stack") or {}
    inside = list(stack)[-1] if stack else ""
    if node.op == "call_module":
        return model.get_submodule(node.target), str(node.target)
    if node.op == "call_method":
        return Method(str(node.target)), str(inside)
    return node.target, str(inside)


class Held:
    """A tensor that the model's code made while it was traced, as a function."""

    def __init__(self, tensor: Any) -> None:
        self.__name__ = "held"
        self.tensor = tensor

    def __call__(self) -> Any:
        return self.tensor


class Method:
    """A method of the first argument, as a function; `__name__` is the method's."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, owner: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self.__name__)(*args, **kwargs)


def overwrites(target: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call writes its result over its first argument."""
    import torch

    if isinstance(target, torch.nn.Module):
        return bool(getattr(target, "inplace", False))
    if kwargs.get("inplace"):
        return True
    if isinstance(target, Held):
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
