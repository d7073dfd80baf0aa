"""Models and inputs that are left alone without a further look."""

from __future__ import annotations

from typing import Any


def unsuited(model: Any, inputs: dict[str, Any]) -> str:
    """Why a model is left alone without a further look; "" where it is not."""
    tensors = [*inputs.values(), *model.parameters(), *model.buffers()]
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        return f"it runs on several devices: {', '.join(devices)}"
    if not devices[0].startswith(("cpu", "cuda")):
        return f"it runs on {devices[0]}"
    if any(each.is_inference() for each in tensors[len(inputs) :]):
        return "its weights were made in inference mode, and no change of them is seen"
    training = next((name for name, each in model.named_modules() if _trains(each)), "")
    return f"its module {training} is in training mode" if training else ""


def _trains(module: Any) -> bool:
    """Whether a module is in training mode, and may do something else there."""
    from torch import nn

    if not module.training:
        return False
    if isinstance(module, nn.RReLU | nn.MultiheadAttention):
        return True
    room = type(module).__module__.removeprefix("torch.nn.modules.")
    return room not in ("activation", "container", "conv", "linear", "pooling")
