"""Which layer each operator of a captured model is."""

from __future__ import annotations

from collections import Counter

import torch

from memplan.errors import UsageError
from memplan.fusing.layers import Layer, Network
from memplan.fusing.operators import Operation
from memplan.fusing.rules import RULES, UNSUPPORTED, Call, UnsupportedError
from memplan.graph.program import Meta, Op, Program, Ref, Step, mapped, refs


def recognise(program: Program, model: torch.nn.Module) -> Network:
    """The layers of a captured program, whose steps are operators.

    model: the one that was captured, by whose modules layers are named.
    """
    modules = dict(model.named_modules())
    works = Counter(
        program.modules.get(op.name) for op in program.ops if not _views(op, program)
    )
    metas = {n: meta for n, meta in program.metas.items() if isinstance(meta, Meta)}
    layers: list[Layer] = []
    same: dict[str, str] = {}  # of values that are others', whose they are
    for step in program.ops:
        assert isinstance(step, Op)
        op = _renamed(step, same)
        where = program.modules.get(op.name)
        module = modules.get(where) if where else None
        place, operator = _named(op, module, program, works[where] == 1)
        shape = metas[op.name].shape if op.name in metas else ()
        layer = Layer(op.name, "call", op.operands(), op, place, operator, shape)
        _apply_rule(layer, program)
        if layer.kind == "call" and _views(step, program):
            layer.reason = ""
        layers.append(layer)
        if layer.kind == "same":
            same[layer.name] = layer.inputs[0]
    outputs = mapped(program.outputs, lambda ref: Ref(same.get(ref.name, ref.name)))
    return Network(
        list(program.inputs),
        dict(program.constants),
        _without_dead(_with_softsign(layers), outputs),
        outputs,
        {name: meta.shape for name, meta in metas.items()},
        {name: meta.dtype for name, meta in metas.items()},
        {name: meta.strides for name, meta in metas.items()},
    )


def _renamed(op: Op, same: dict[str, str]) -> Op:
    if not same.keys() & op.operands():
        return op
    args, kwargs = mapped(
        (op.args, op.kwargs), lambda ref: Ref(same.get(ref.name, ref.name))
    )
    return Op(op.name, op.target, args, kwargs, op.line)


def _views(step: Step, program: Program) -> bool:
    """Whether a step computes nothing: its result is memory of what it takes, or one
    of several results."""
    if isinstance(step, Op) and step.key == "getitem":
        return True
    roots = program.roots.get(step.name)
    return roots in [program.roots.get(name) for name in step.operands()]


def _named(
    op: Op, module: torch.nn.Module | None, program: Program, alone: bool
) -> tuple[str, str]:
    """Where an operator of a module stands, and its name: the path of one of torch.nn,
    and its class if the operator is `alone` in it; else the line of source. Otherwise
    the name is the function's."""
    name = op.key.rpartition(".")[2]
    if type(module).__module__.startswith("torch.nn.modules."):
        viewed = _views(op, program)
        kind = type(module).__name__ if alone and not viewed else name
        return program.modules[op.name], kind
    return f"{op.line}: {op.name}" if op.line else op.name, name


def _apply_rule(layer: Layer, program: Program) -> None:
    """Make a layer what its operator's rule says; torch runs it if there is none."""
    op = layer.op
    try:
        rule = RULES.get(op.key)
        if rule is None:
            raise UnsupportedError(f"{layer.operator} {UNSUPPORTED}")
        call = Call(layer, program)
        made = call.meta(Ref(op.name))
        if made is None or not made.dtype.is_floating_point:
            raise UnsupportedError("its result is not a floating-point tensor")
        if made.dtype not in (torch.float32, torch.bfloat16):
            kind = str(made.dtype).removeprefix("torch.")
            raise UnsupportedError(f"its type is {kind}")
        rule(call)
        taken = [call.meta(Ref(name)) for name in layer.inputs]
        if any(each is None or each.dtype != made.dtype for each in taken):
            raise UnsupportedError("its operands and result have different types")
    except UnsupportedError as error:
        _leave(layer, str(error))
    except (TypeError, ValueError, UsageError):
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
        if layer.name in wanted or layer.kind == "same":
            wanted.update(layer.op.operands())
            kept.append(layer)
    return kept[::-1]
