"""How a model is fused: every part of it can be left out, to see what it is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan.errors import UsageError

KERNELS = ("direct", "winograd2", "winograd4", "depthwise", "onednn")


def kernel_subsets(kernels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sets of kernels, each without the coarsest of the one before."""
    found = [kernels]
    for name in ("winograd4", "winograd2"):
        rest = tuple(each for each in found[-1] if each != name)
        if rest and rest != found[-1]:
            found.append(rest)
    return found


@dataclass(frozen=True)
class Joining:
    """Which rewrites are made; each can be left out, to see what it is worth.

    norms: normalisations folded into convolutions. epilogues: additions and activations
    with the convolution before. prologues: normalisation and ReLU with the convolution
    behind, and zeros around planes; with a depthwise one what is element-wise. pools:
    average pooling moved in front of 1×1 convolutions.
    """

    norms: bool = True
    epilogues: bool = True
    prologues: bool = True
    pools: bool = True


@dataclass(frozen=True)
class FuseOptions:
    """Options of `memplan.fuse`.

    joining: which layers are joined into convolutions. kernels: what convolutions may
    run as: this project's own ("direct", "winograd2", "winograd4", and "depthwise" of
    each channel by itself), or oneDNN's with its weights packed; the fastest on this
    machine is taken. micro_batch: how many images go through the network at a time, at
    most: a divisor of the batch; None for the fastest of a few. max_steps: of a
    sequence of a stack, at most (the paper's strategies: 1, 5, None). tolerance: the
    largest relative error to the model's own results. memory: the most activations may
    take, with the arena, over the model's; 1 MiB more always may. measure: whether the
    fused network is measured beside the model, and given up where it saves no time or
    takes too much memory.
    """

    joining: Joining = field(default_factory=Joining)
    kernels: tuple[str, ...] = KERNELS
    micro_batch: int | None = None
    max_steps: int | None = None
    tolerance: float = 1e-5
    memory: float = 1.25
    measure: bool = True

    def __post_init__(self) -> None:
        unknown = set(self.kernels) - set(KERNELS)
        if unknown or not self.kernels:
            names = ", ".join(KERNELS)
            raise UsageError(f"kernels are some of {names}, not {self.kernels!r}")
        for name in ("micro_batch", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is a positive number, not {value}")
        if not self.tolerance >= 0:  # NaN neither
            raise UsageError(f"tolerance is at least 0, not {self.tolerance}")
        if not self.memory >= 0:
            raise UsageError(f"memory is at least 0, not {self.memory}")
