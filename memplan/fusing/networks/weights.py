"""Weights at random with which activations neither fade nor grow, however deep."""

from __future__ import annotations

from typing import Any


def randomised(model: Any, seed: int) -> Any:
    """`model` itself, all its weights set by `seed`, in evaluation mode.

    Convolutions and linear layers keep the variance of what ReLU leaves (He et al.,
    2015); normalisation layers get statistics as if trained, none of them 0 or 1, so
    that leaving one out shows in the results. What closes a branch around a shortcut
    is damped, or sums would double in each of fifty blocks.
    """
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)

    def near(tensor: Any, centre: float, spread: float) -> None:
        noise = torch.rand(tensor.shape, generator=generator)
        tensor.copy_(noise.mul_(2 * spread).add_(centre - spread))

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                fan = module.weight[0].numel()
                module.weight.normal_(0.0, (2.0 / fan) ** 0.5, generator=generator)
                if module.bias is not None:
                    near(module.bias, 0.0, 0.1)
            elif isinstance(module, nn.BatchNorm2d):
                near(module.weight, 1.0, 0.2)
                near(module.bias, 0.0, 0.2)
                near(module.running_mean, 0.0, 0.2)
                near(module.running_var, 1.0, 0.2)
                module.num_batches_tracked.zero_()
        for module in model.modules():
            if hasattr(module, "closing"):
                module.closing.weight.mul_(0.25)
    return model.eval().requires_grad_(False)


def torch_layers() -> Any:
    """`torch.nn`. Raises EnvironmentUnfitError without torch."""
    from memplan.errors import EnvironmentUnfitError

    try:
        from torch import nn
    except ImportError:
        raise EnvironmentUnfitError(
            "the networks need PyTorch; install it: pip install torch"
        ) from None
    return nn


def sequence(**layers: Any) -> Any:
    """Layers one after the other, by name."""
    from collections import OrderedDict

    return torch_layers().Sequential(OrderedDict(layers))
