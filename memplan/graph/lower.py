"""From an exported graph to a Program in canonical form."""

from __future__ import annotations

import builtins
import functools
import keyword
import os
import re
from typing import TYPE_CHECKING

from memplan.errors import InputError
from memplan.graph.export import DataDependentError, Exported, functional, storage_of
from memplan.graph.infer import Inference, ShapeError, meta_of
from memplan.graph.program import Argument, Op, Program, Ref, refs, results

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportGraphSignature

# Operators that check and compute nothing, or nothing in inference.
CHECKS = {
    "aten._assert_tensor_metadata",
    "aten._assert_scalar",
    "aten._assert_async",
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
}
SAME = {
    "aten.alias",
    "aten.detach",
    "aten.lift_fresh_copy",
    "aten.lift",
    "aten.lift_fresh",
}
DROPOUTS = {"aten.dropout", "aten.feature_dropout", "aten.native_dropout"}
CASTS = {"aten.to", "aten._to_copy", "aten.type_as"}
FILLS = {
    "aten.ones_like": 1,
    "aten.zeros_like": 0,
    "aten.new_ones": 1,
    "aten.new_zeros": 0,
    "aten.zero": 0,
    "aten.ones": 1,
    "aten.zeros": 0,
}


# Names that generated code uses for other things.
RESERVED = {"torch", "aten", "inputs", "weights", "forward", *dir(builtins)}


class UnsupportedGraphError(InputError):
    """An exported graph with something that a Program cannot represent."""


def lower(exported: Exported, inference: Inference) -> Program:
    """`exported` as a Program: operators that do nothing dropped, constants filled.

    Raises UnsupportedGraphError for models that write to their buffers or inputs,
    DataDependentError for those whose sizes depend on data.
    """
    return _Lowering(exported, inference).program()


class _Lowering:
    def __init__(self, exported: Exported, inference: Inference) -> None:
        self._exported, self._inference = exported, inference
        self._program = Program([], {}, [], None, {}, {})
        self._names: dict[fx.Node, Argument] = {}  # fx node -> Ref, or a plain value
        self._fills: dict[str, float] = {}  # values that are one number throughout

    def program(self) -> Program:
        signature = self._exported.signature
        _refuse_mutations(signature)
        for node in self._exported.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, signature)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._program.outputs = self._argument(node.args[0])
            else:
                raise UnsupportedGraphError(f"the graph holds {node.op} {node.target}")
        return without_dead(self._program)

    def _placeholder(self, node: fx.Node, signature: ExportGraphSignature) -> None:
        value, name = node.meta.get("val"), free_name(node)
        targets = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        if not hasattr(value, "untyped_storage"):  # None, a number: it is fixed
            self._names[node] = value
            return
        if node.name in targets:
            self._program.constants[name] = targets[node.name]
        else:
            self._program.inputs.append(name)
        self._program.metas[name] = meta_of(value)
        self._program.roots[name] = name
        self._names[node] = Ref(name)

    def _call(self, node: fx.Node) -> None:
        import torch

        args = self._argument(tuple(node.args))
        kwargs = self._argument(dict(node.kwargs))
        target = node.target
        written = isinstance(target, torch._ops.OpOverload) and (
            target._schema.is_mutable
        )
        if written:
            target = functional(node)
        op = Op(free_name(node), target, args, kwargs, source_line(node))
        if op.key in CHECKS:
            return
        if op.key == "getitem" and isinstance(op.args[0], list):
            self._names[node] = op.args[0][op.args[1]]
            return
        same = self._unchanged(op, node)
        if same is not None:
            self._names[node] = same
            return
        self._program.modules[op.name] = _module_of(node)
        op = self._canonical(op, node)
        try:
            self._inference.add(self._program, op)
        except ShapeError as error:
            raise UnsupportedGraphError(
                f"{op.line or op.name}: no shape rule for {error}"
            ) from error
        self._program.ops.append(op)
        # Of several results, those after the first are of training.
        several = node.target is not op.target and isinstance(node.meta["val"], tuple)
        first = several and op.target is torch.ops.aten.batch_norm.default
        self._names[node] = [Ref(op.name)] if first else Ref(op.name)
        if written:
            old, new = args[0], self._names[node]
            here = storage_of(node)  # a copy that was left out is not written
            same = (n for n, v in self._names.items() if v == old)
            self._names.update((n, new) for n in same if storage_of(n) == here)

    def _unchanged(self, op: Op, node: fx.Node) -> Argument:
        """The argument that an operator returns unchanged, or None."""
        first = op.args[0] if op.args else None
        if op.key in SAME:
            return first
        if op.key in DROPOUTS and not op.args[-1]:
            return first
        if op.key in {"aten.clone", "aten.copy"}:
            source = op.args[op.key == "aten.copy"]
            return source if self._is_spare(op, source) else None
        # A slice may be of all there is; but no result is one of the caller's tensors.
        returned = any(user.op == "output" for user in node.users)
        sliced = op.key == "aten.slice" and not (returned and self._is_given(first))
        if (sliced or op.key in CASTS) and isinstance(first, Ref):
            before, after = self._program.metas[first.name], meta_of(node.meta["val"])
            copies = op.kwargs.get("memory_format") is not None
            return first if before == after and not copies else None
        if op.key == "aten.mul":
            for this, other in (op.args, op.args[::-1]):
                if isinstance(other, Ref) and self._fills.get(other.name) == 1:
                    meta = isinstance(this, Ref) and self._program.metas[this.name]
                    if meta == meta_of(node.meta["val"]):
                        return this
        return None

    def _is_given(self, value: Argument) -> bool:
        """Whether a value lies in memory that is not the program's."""
        given = {*self._program.inputs, *self._program.constants}
        return isinstance(value, Ref) and self._program.roots[value.name] in given

    def _is_spare(self, op: Op, source: Argument) -> bool:
        """Whether the copy that `op` makes of a value is unnecessary."""
        if not isinstance(source, Ref):
            return False
        if op.key == "aten.clone":
            return self._needless(source, op)
        return self._copied_alone(op.args[0], source)

    def _copied_alone(self, onto: Ref, source: Ref) -> bool:
        """Whether a copy onto a value of equal form is unnecessary: the source belongs
        to the program, and the old contents are not needed."""
        there, here = (self._program.metas[each.name] for each in (onto, source))
        alike = there._replace(strides=here.strides) == here
        return alike and not self._is_given(source)

    def _needless(self, source: Ref, op: Op) -> bool:
        """Whether a copy is unnecessary: programs write nothing in place, but a result
        must not be one of the caller's tensors."""
        import torch

        form = op.kwargs.get("memory_format") or torch.preserve_format
        if self._is_given(source):
            return False
        meta = self._program.metas[source.name]
        if form == torch.contiguous_format:
            return bool(meta.contiguous)
        return bool(form == torch.preserve_format)

    def _canonical(self, op: Op, node: fx.Node) -> Op:
        import torch

        aten = torch.ops.aten
        value = FILLS.get(op.key)
        if op.key in {"aten.full_like", "aten.fill"}:
            value = op.args[1]
        if isinstance(value, int | float):
            meta = meta_of(node.meta["val"])
            self._fills[op.name] = value
            options = {"dtype": meta.dtype, "device": torch.device(meta.device)}
            return Op(
                op.name, aten.full.default, (list(meta.shape), value), options, op.line
            )
        if op.key == "aten._native_batch_norm_legit_no_training":
            args = (*op.args[:5], False, *op.args[5:7], False)
            return Op(op.name, aten.batch_norm.default, args, {}, op.line)
        if op.key == "aten.view" and not isinstance(op.args[1], torch.dtype):
            # Slices and buffers of other layouts are not viewable; the same else.
            return Op(op.name, aten.reshape.default, op.args, {}, op.line)
        if op.key == "aten.full" and isinstance(op.args[1], int | float):
            self._fills[op.name] = op.args[1]
        if op.key == "aten.baddbmm" and op.kwargs.get("beta", 1) == 0:
            product = Op(op.name, aten.bmm.default, op.args[1:3], {}, op.line)
            alpha = op.kwargs.get("alpha", 1)
            if alpha == 1:
                return product
            product.name = f"{op.name}_product"
            self._inference.add(self._program, product)
            self._program.ops.append(product)
            scaled = (Ref(product.name), alpha)
            return Op(op.name, aten.mul.Tensor, scaled, {}, op.line)
        return op

    def _argument(self, value: Argument) -> Argument:
        import torch

        if isinstance(value, torch.fx.Node):
            return self._names[value]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DataDependentError("a size depends on data or is left open")
        if isinstance(value, tuple | list):
            return type(value)(self._argument(item) for item in value)
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        return value


def _refuse_mutations(signature: ExportGraphSignature) -> None:
    for name, what in (
        ("buffers_to_mutate", "its buffer"),
        ("user_inputs_to_mutate", "its input"),
        ("parameters_to_mutate", "its parameter"),
    ):
        written = getattr(signature, name, None)
        if written:
            raise UnsupportedGraphError(
                f"the model writes to {what} {next(iter(written.values()))!r} "
                "as it runs"
            )


def free_name(node: fx.Node) -> str:
    """The name of an fx node's value: the node's own, unless it is reserved."""
    name = str(node.name)
    return f"{name}_value" if name in RESERVED or keyword.iskeyword(name) else name


def argument_name(name: str) -> str:
    """The name of an input as the model has it, which `free_name` may have changed."""
    plain = name.removesuffix("_value")
    return plain if plain in RESERVED or keyword.iskeyword(plain) else name


def without_dead(program: Program) -> Program:
    """The program without operators whose results are unused."""
    wanted = set(refs(program.outputs))
    kept = []
    for op in reversed(program.ops):
        if wanted.intersection(results(op)):
            kept.append(op)
            wanted.update(op.operands())
    program.ops = kept[::-1]
    return program


def source_line(node: fx.Node) -> str:
    """`file:line` of the innermost user code, outside torch, that made an fx node.

    If all of it is torch's, as in an nn.Sequential, the module's path and class. "" if
    neither is known.
    """
    trace = node.meta.get("stack_trace") or ""
    for file, line in reversed(re.findall(r'File "([^"]+)", line (\d+)', trace)):
        if not file.startswith(_torch_folder()):
            return f"{file}:{line}"
    path, kind = _innermost(node)
    if not kind:
        return ""
    return f"module {path} ({kind})" if path else f"module {kind}"


def _innermost(node: fx.Node) -> tuple[str, str]:
    """Path and class of the module that made an fx node; "" where it is not known."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    if not modules:
        return "", ""
    path, kind = modules[-1]
    return path, getattr(kind, "__name__", str(kind).rpartition(".")[2])


def _module_of(node: fx.Node) -> str:
    path, kind = _innermost(node)
    return path or kind


@functools.cache
def _torch_folder() -> str:
    import torch

    return os.path.join(os.path.dirname(torch.__file__), "")
