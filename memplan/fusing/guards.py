"""Calls that are no plain inference: for them a fused module is its model."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.trace import has_hooks


def unfit(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call is not one of plain inference; "" where it is."""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "it is being traced"
    if model.training:
        return "it is in training mode"
    if has_hooks(model):
        return "it has hooks"
    return (
        _around()
        or _unfit_leaves(args, torch.is_grad_enabled())
        or _unfit_leaves(kwargs.values(), torch.is_grad_enabled())
    )


def _around() -> str:
    """What torch is told to do otherwise while this call runs."""
    import torch

    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "it runs under autocast"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "there are hooks on all modules"
    if torch._C._len_torch_dispatch_stack() or _modes():
        return "a mode watches what torch does"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "its functions are transformed"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it takes forward derivatives"
    return ""


def _modes() -> bool:
    """Whether functions of torch are overridden, by more than a default device."""
    import torch

    if not torch._C._len_torch_function_stack():
        return False
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    stack = _get_current_function_mode_stack()
    return not all(isinstance(mode, DeviceContext) for mode in stack)


def _unfit_leaves(values: Any, grad: bool) -> str:
    """What is unfit among arguments; those inside others are told apart later."""
    import torch

    for value in values:
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.fx.Proxy):
                return "it is being traced"
            continue
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"an input is a {type(value).__name__}"
        if grad and value.requires_grad:
            return "an input wants a gradient"
        if value.layout is not torch.strided or value.is_quantized:
            return "an input is sparse or quantized"
    return ""
