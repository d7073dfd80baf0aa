"""Which layer each operator of a captured model is."""

from __future__ import annotations

import torch

from memplan.errors import UsageError
from memplan.fusing.layers import Layer, Network
from memplan.fusing.operators import Operation
from memplan.fusing.rules import RULES, Context, UnsupportedError
from memplan.graph.program import Meta, Op, Program, Ref, refs


def recognise(program: Program, model: torch.nn.Module) -> Network:
    """The layers of a captured program, whose steps are operators.

    model: the one that was captured, by whose modules layers are named.
    """
    context, modules = Context(program), dict(model.named_modules())
    metas = {n: meta for n, meta in program.metas.items() if isinstance(meta, Meta)}
    layers = []
    for op in program.ops:
        assert isinstance(op, Op)
        module = modules.get(program.modules.get(op.name, ""))
        place, operator = _named(op, module, program)
        shape = metas[op.name].shape if op.name in metas else ()
        layer = Layer(op.name, "call", op.operands(), op, place, operator, shape)
        _apply_rule(layer, context)
        layers.append(layer)
    return Network(
        list(program.inputs),
        dict(program.constants),
        _without_dead(_with_softsign(layers), program.outputs),
        program.outputs,
        {name: meta.shape for name, meta in metas.items()},
        {name: meta.dtype for name, meta in metas.items()},
        {name: meta.strides for name, meta in metas.items()},
    )


def _named(op: Op, module: torch.nn.Module | None, program: Program) -> tuple[str, str]:
    """Where an operator of a module stands, and its name: path and class of one of
    torch.nn, else the line of source and the function's name."""
    if type(module).__module__.startswith("torch.nn.modules."):
        return program.modules[op.name], type(module).__name__
    name = op.key.rpartition(".")[2]
    return f"{op.line}: {op.name}" if op.line else op.name, name


def _apply_rule(layer: Layer, context: Context) -> None:
    """Make a layer what its operator's rule says; torch runs it if there is none."""
    op = layer.op
    try:
        rule = RULES.get(op.key)
        if rule is None:
            raise UnsupportedError(f"{layer.operator} is not a supported layer")
        dtype = context.dtype(Ref(op.name))
        if dtype is None or not dtype.is_floating_point:
            raise UnsupportedError("its result is not a floating-point tensor")
        if dtype not in (torch.float32, torch.bfloat16):
            raise UnsupportedError(f"its type is {str(dtype).removeprefix('torch.')}")
        rule(layer, context, *op.args, **op.kwargs)
        if any(context.dtype(Ref(name)) != dtype for name in layer.inputs):
            raise UnsupportedError("its operands and result have different types")
    except UnsupportedError as error:
        _leave(layer, str(error))
    except (TypeError, UsageError):
        _leave(layer, "it has unsupported arguments")


def _leave(layer: Layer, reason: str) -> None:
    """Mark a layer as run by torch; one of several results is no layer to speak of."""
    reason = "" if layer.op.key == "getitem" else reason
    layer.kind, layer.reason, layer.inputs = "call", reason, layer.op.operands()
    layer.convolution = layer.operation = layer.norm = None


def _with_softsign(layers: list[Layer]) -> list[Layer]:
    """softsign, which torch computes as x / (abs(x) + 1), as one layer."""
    makers = {layer.name: layer for layer in layers}
    for layer in layers:
        if layer.op.key != "aten.div" or len(layer.inputs) != 2:
            continue
        x, below = layer.inputs
        plus = makers.get(below)
        if plus is None or plus.operation != Operation("add_number", (1.0,)):
            continue
        inner = makers.get(plus.inputs[0])
        if inner and inner.operation == Operation("abs") and inner.inputs == [x]:
            softsign = torch.nn.functional.softsign
            layer.kind, layer.inputs, layer.reason = "operation", [x], ""
            layer.operation = Operation("softsign")
            layer.op = Op(layer.name, softsign, (Ref(x),), {}, layer.op.line)
    return layers


def _without_dead(layers: list[Layer], outputs: object) -> list[Layer]:
    wanted, kept = set(refs(outputs)), []
    for layer in reversed(layers):
        if layer.name in wanted:
            wanted.update(layer.op.operands())
            kept.append(layer)
    return kept[::-1]
