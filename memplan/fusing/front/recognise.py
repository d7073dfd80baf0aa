"""Which layer each operator of a program is."""

from __future__ import annotations

from typing import Any

from memplan.errors import UsageError
from memplan.fusing.front.context import Context, LeftAloneError
from memplan.fusing.front.functions import FUNCTIONS
from memplan.fusing.front.modules import functional
from memplan.fusing.layers import Layer, Network
from memplan.graph.program import Op, Program, Ref


def recognise(program: Program) -> Network:
    """The layers of a program whose metas are known."""
    context = Context(program)
    layers = [_layer(op, program, context) for op in program.ops]  # type: ignore[arg-type]
    metas = {name: meta for name, meta in program.metas.items() if meta is not None}
    return Network(
        list(program.inputs),
        dict(program.constants),
        layers,
        program.outputs,
        {name: meta.shape for name, meta in metas.items()},
        {name: meta.dtype for name, meta in metas.items()},
        {name: meta.strides for name, meta in metas.items()},
    )


def _layer(op: Op, program: Program, context: Context) -> Layer:
    meta = program.metas.get(op.name)
    shape = () if meta is None else meta.shape
    layer = Layer(op.name, "call", op.operands(), op, shape)
    try:
        key, args, kwargs = functional(op)
        rule = FUNCTIONS.get(key)
        if rule is None:
            raise LeftAloneError(f"{key} is none of the layers that are fused")
        if meta is None or not meta.dtype.is_floating_point:
            raise LeftAloneError("its result is no floating-point tensor")
        if not meta.device.startswith(("cpu", "cuda")):
            raise LeftAloneError(f"it runs on {meta.device}")
        _check_dtype(meta.dtype)
        rule(layer, context, *args, **kwargs)
        if any(context.dtype(Ref(name)) != meta.dtype for name in layer.inputs):
            raise LeftAloneError("its operands and result have several types")
    except LeftAloneError as error:
        _leave(layer, str(error))
    except (TypeError, UsageError):
        _leave(layer, "its arguments are unusual")
    return layer


def _check_dtype(dtype: Any) -> None:
    import torch

    if dtype not in (torch.float32, torch.bfloat16):
        raise LeftAloneError(f"it computes in {str(dtype).removeprefix('torch.')}")


def _leave(layer: Layer, reason: str) -> None:
    """Leave a layer to torch, whatever a rule has made of it."""
    layer.kind, layer.reason, layer.inputs = "call", reason, layer.op.operands()
    layer.convolution = layer.operation = layer.norm = None
