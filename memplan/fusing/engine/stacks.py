"""Stacks of a network as kernels, or by torch where there is no compiler."""

from __future__ import annotations

import warnings
from typing import Any

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.caches import cpu_device
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.cuda.gpu import Gpu
from memplan.fusing.cuda.kernel import TYPES
from memplan.fusing.cuda.run import CudaStack
from memplan.fusing.engine.packs import four
from memplan.fusing.generate import DTYPES
from memplan.fusing.kernel import Kernel, compiled_many
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Node, Stacked


def collapsed(
    node: Stacked, network: Network, layout: str, max_steps: int | None
) -> Stack:
    """A node's stack, cut into sequences for this CPU's caches."""
    _, _, height, width = four(network.shapes[node.source])
    device = cpu_device(layout)
    return collapse(tuple(node.operations), (height, width), device, max_steps)


def kernels(
    nodes: list[Node],
    network: Network,
    layout: str,
    max_steps: int | None,
    own: bool,
) -> tuple[dict[str, Kernel | Stack | CudaStack], bool]:
    """Of each stack, by value, its kernel; itself where torch runs it. And whether some
    could not be compiled, which is said once.

    own: whether there are kernels at all.
    """
    found: dict[str, Kernel | Stack | CudaStack] = {}
    groups: dict[str, list[tuple[str, Stack]]] = {}
    missing = False
    for node in nodes:
        if isinstance(node, Stacked):
            stack = collapsed(node, network, layout, max_steps)
            found[node.value] = stack
            dtype = _dtype(network.dtypes[node.source])
            groups.setdefault(dtype, []).append((node.value, stack))
    for dtype, pairs in groups.items():
        if own and dtype in DTYPES:
            try:
                made = compiled_many([stack for _, stack in pairs], dtype, layout)
            except EnvironmentUnfitError as error:
                warn_once("torch runs the stacks", error)
                missing = True
                continue
            found.update(zip((name for name, _ in pairs), made, strict=True))
    return found, missing


_told: set[str] = set()


def warn_once(what: str, why: Exception) -> None:
    """Warn of what becomes of models on this machine, if neither that nor its cause was
    told before in this process."""
    known = not _told.isdisjoint((what, str(why)))
    _told.update((what, str(why)))
    if not known:
        warnings.warn(f"memplan.fuse: {what}: {why}", stacklevel=2)


def on_gpu(
    nodes: list[Node], network: Network, device: str, max_steps: int | None
) -> dict[str, Kernel | Stack | CudaStack]:
    """Of each stack, by value, its kernels on a GPU; itself where torch runs it.

    Raises EnvironmentUnfitError where the GPU or NVRTC cannot be used.
    """
    gpu = Gpu(int(device.partition(":")[2] or 0))
    found: dict[str, Kernel | Stack | CudaStack] = {}
    for node in nodes:
        if isinstance(node, Stacked):
            fit = _dtype(network.dtypes[node.source]) in TYPES
            found[node.value] = (
                CudaStack(tuple(node.operations), gpu, max_steps=max_steps)
                if fit
                else collapsed(node, network, "channels_first", max_steps)
            )
    return found


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
