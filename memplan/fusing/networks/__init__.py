"""The networks that the paper measures (BrainSlug, section 5), compactly.

Modules and keys of the state are named as in torchvision, so that its weights load.
`stack:N` is the paper's Figure 10: N blocks of max-pooling, normalisation and ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memplan.errors import UsageError
from memplan.fusing.networks import (
    alexnet,
    densenet,
    inception,
    resnet,
    squeezenet,
    stack,
    vgg,
)
from memplan.fusing.networks.weights import randomised, torch_layers

_FAMILIES: dict[str, Callable[[str], Any]] = {
    name: family.network
    for family in (alexnet, inception, densenet, resnet, squeezenet, vgg)
    for name in family.NAMES
}

NAMES = tuple(_FAMILIES)  # in the order of the paper's tables

_STACK = "stack:"
MOST_BLOCKS = 1000  # of a stack: more is a slip of the pen


def build(name: str, seed: int = 0) -> Any:
    """The network `name`, in evaluation mode, its weights and statistics at random.

    name: one of NAMES, or stack:N. The same seed gives the same weights, and the
    state of torch's own generator is left alone. Raises UsageError for other names,
    and EnvironmentUnfitError without torch.
    """
    check(name)
    torch_layers()
    import torch

    with torch.device("meta"):  # initial values would take time, and random numbers
        empty = structure(name)
    return randomised(empty.to_empty(device="cpu"), seed)


def structure(name: str) -> Any:
    """The modules of the network `name`, their weights as torch makes them: none at all
    under ``torch.device("meta")``. Raises as `build` does."""
    check(name)
    if name.startswith(_STACK):
        return stack.network(_blocks(name))
    return _FAMILIES[name](name)


def input_shape(name: str) -> tuple[int, int, int]:
    """Channels, height and width of one input. Raises UsageError for other names."""
    check(name)
    if name.startswith(_STACK):
        return stack.SHAPE
    side = inception.SIDE if name in inception.NAMES else 224
    return 3, side, side


def check(name: str) -> None:
    """Raise UsageError unless `name` is one of NAMES or stack:N."""
    if name.startswith(_STACK):
        _blocks(name)
    elif name not in _FAMILIES:
        known = ", ".join(NAMES)
        raise UsageError(f"{name!r} is no network; there are {known} and stack:N")


def _blocks(name: str) -> int:
    digits = name.removeprefix(_STACK)
    count = int(digits) if digits.isascii() and digits.isdigit() else 0
    if not 1 <= count <= MOST_BLOCKS:
        raise UsageError(f"{name!r}: a stack has 1 to {MOST_BLOCKS} blocks: stack:10")
    return count
