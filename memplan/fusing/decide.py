"""Decisions by measurement: a kernel for each convolution."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cached_property, partial

import torch

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.choose import (
    candidates,
    fastest,
    run_of,
    signature,
    timing_images,
)
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.generate import DTYPES
from memplan.fusing.join import is_depthwise, with_depthwise, without_prologues
from memplan.fusing.kernel import Kernel, compiled_many
from memplan.fusing.kernels import tape
from memplan.fusing.layers import (
    DepthwiseStack,
    FusedConv,
    Network,
    Node,
    StackNode,
)
from memplan.fusing.options import KERNELS, FuseOptions
from memplan.fusing.packs import Packs, Stacks, as_4d
from memplan.fusing.patches import cpu_device
from memplan.fusing.reference import reference
from memplan.graph.weights import Weights
from memplan.toolchain.cache import Cache
from memplan.toolchain.instructions import cpu
from memplan.version import __version__

Plan = tuple[str, ...]
"""The kernel of each convolution, in order."""
Timed = dict[tuple[str, ...], str]
"""The fastest of some kernels, by what their times depend on."""

_SUFFIX = ".json"


def read_plan(key: str) -> Plan | None:
    """What was decided for nodes, options, CPU and versions; None if nothing was."""
    with contextlib.suppress(EnvironmentUnfitError, ValueError, TypeError):
        return tuple(map(str, json.loads(Cache().read(key, _SUFFIX) or b"0")))
    return None


def write_plan(key: str, plan: Plan) -> None:
    """Cache what is decided; without a usable cache, do nothing."""
    with contextlib.suppress(EnvironmentUnfitError):
        Cache().write(key, _SUFFIX, json.dumps(plan).encode())


def collapsed(
    node: StackNode, network: Network, layout: str, max_steps: int | None
) -> Stack:
    """A node's stack, cut into sequences for this CPU's caches."""
    _, _, height, width = as_4d(network.shapes[node.source])
    device = cpu_device(layout)
    return collapse(tuple(node.operations), (height, width), device, max_steps)


_told: set[str] = set()


def warn_once(what: str, why: Exception) -> None:
    """Warn how models run on this machine, unless this process has warned of the same
    or of the same cause before."""
    known = not _told.isdisjoint((what, str(why)))
    _told.update((what, str(why)))
    if not known:
        warnings.warn(f"memplan.fuse: {what}: {why}", stacklevel=2)


class Decisions:
    """What a network's convolutions run as, on this machine; without a compiler torch
    runs everything, after a warning.

    inputs: of the network, in order. timed: what is known of a like network; gets what
    is found. plan: what was decided earlier for the same nodes,
    options and machine. layout: of values in memory, one of `generate.LAYOUTS`.
    """

    def __init__(
        self,
        weights: Weights,
        network: Network,
        nodes: list[Node],
        inputs: Sequence[torch.Tensor],
        options: FuseOptions,
        timed: Timed,
    ) -> None:
        self._weights, self.network, self._nodes = weights, network, nodes
        self._options = options
        self._convolutions = [each for each in nodes if isinstance(each, FusedConv)]
        self.layout = _layout(nodes, inputs)
        self.own = has_kernels()
        self._lacking = not self.own
        self._timed = timed
        self._depthwise = self._stacks_of_depthwise()
        kept = (each for each in nodes if isinstance(each, FusedConv | StackNode))
        keys = [_node_key(node, network, weights) for node in kept]
        parts = (
            [self.layout, *keys], cpu(), __version__, torch.__version__,
            options.joining, options.kernels, options.max_steps,
        )  # fmt: skip
        self._key = hashlib.sha256(repr(parts).encode()).hexdigest()
        self.plan = read_plan(self._key)
        if not self._is_possible(self.plan):
            self.plan = None

    def _is_possible(self, plan: Plan | None) -> bool:
        """Whether each convolution can run by what was decided for it."""
        given = self.network, self._weights, KERNELS
        if plan is None or len(plan) != len(self._convolutions):
            return False
        return all(
            kernel in (*candidates(node, *given), "onednn")
            for node, kernel in zip(self._convolutions, plan, strict=True)
        )

    def _decided(self) -> Plan:
        """The plan whose convolutions run as the fastest kernels that the options
        have."""
        return tuple(map(self._kernel, self._convolutions))

    def packs(self) -> Packs:
        """The nodes of the plan, with all that their kernels need of the model."""
        if self.plan is not None:
            return self._packs(self.plan)
        plan = self._decided()
        packs = self._packs(plan)
        if not self._lacking:  # kernels that are missing may exist later
            write_plan(self._key, plan)
        return packs

    def _packs(self, kernels: Plan) -> Packs:
        if not self.own:
            kernels = ("onednn",) * len(self._convolutions)
        values = [node.value for node in self._convolutions]
        chosen = dict(zip(values, kernels, strict=True))
        if self._depthwise and "depthwise" in self._options.kernels:
            _ = self._kernels  # compiled
        nodes = without_prologues(self._nodes, chosen)
        nodes = self._with_depthwise(
            nodes, {value for value, kernel in chosen.items() if kernel == "depthwise"}
        )
        return Packs(self._weights, self.network, nodes, chosen, self._stacks(nodes))

    def _kernel(self, node: FusedConv) -> str:
        if not self.own:
            return "onednn"
        wanted = self._options.kernels
        names = candidates(node, self.network, self._weights, wanted)
        stack = self._depthwise[node.value] if "depthwise" in names else None
        if stack is not None and not isinstance(self._kernels.get(stack.value), Kernel):
            names = [name for name in names if name != "depthwise"] or ["onednn"]
        if len(names) == 1:
            return names[0]
        images = timing_images(node, self.network, self._weights)
        known = signature(node, self.network, self._weights, images)
        if stack is not None:
            known += f" {', '.join(map(str, stack.operations))}"
        key = (known, *names)
        if key not in self._timed:
            self._timed[key] = self._fastest(node, images, names)
        return self._timed[key]

    def _fastest(self, node: FusedConv, images: int, names: list[str]) -> str:
        """The fastest of some kernels."""
        stack, runs = self._depthwise.get(node.value), {}
        for name in names:
            nodes: list[Node] = [node]
            if stack is not None and name == "depthwise":
                nodes = [stack]
            elif stack is not None:  # the stacks around it stay by themselves
                nodes += stack.around
            given = nodes, self.network, self._weights, images, name
            runs[name] = run_of(*given, self._kernels if stack in nodes else {})
        return fastest(runs)

    def _stacks_of_depthwise(self) -> dict[str, DepthwiseStack]:
        """The stacks that depthwise convolutions would be, by their own values."""
        own = {
            node.value
            for node in self._nodes
            if self.own and is_depthwise(node, self.network, self._weights)
        }
        return {
            each.convolution.value: each
            for each in self._with_depthwise(self._nodes, own)
            if isinstance(each, DepthwiseStack)
        }

    def _with_depthwise(self, nodes: list[Node], chosen: set[str]) -> list[Node]:
        if not chosen:
            return nodes
        joining = self._options.joining
        return with_depthwise(
            nodes, self._weights, self.network.outputs, chosen, joining
        )

    @cached_property
    def _kernels(self) -> Stacks:
        """Kernels of all stacks as if every depthwise convolution were one: compiling
        them together takes less time, and the source does not depend on decisions."""
        return self._stacks(self._with_depthwise(self._nodes, set(self._depthwise)))

    def _stacks(self, nodes: list[Node]) -> Stacks:
        """What computes each stack, by value: torch where there is no kernel. Warns
        once if some cannot be compiled."""
        found: Stacks = {}
        groups: dict[str, dict[str, Stack]] = {}
        for node in nodes:
            if isinstance(node, StackNode):
                most = self._options.max_steps
                stack = collapsed(node, self.network, self.layout, most)
                found[node.value] = partial(reference, stack)
                dtype = str(self.network.dtypes[node.source]).removeprefix("torch.")
                groups.setdefault(dtype, {})[node.value] = stack
        for dtype, stacks in groups.items():
            if not self.own or dtype not in DTYPES:
                continue
            try:
                made = compiled_many(list(stacks.values()), dtype, self.layout)
            except EnvironmentUnfitError as error:
                warn_once("torch runs the stacks", error)
                self._lacking = True
                break
            found.update(zip(stacks, made, strict=True))
        return found


def _node_key(node: FusedConv | StackNode, network: Network, weights: Weights) -> str:
    """What a node's time depends on, but for the number of images, as text: part of the
    key of a decision."""
    threads = torch.get_num_threads()
    if isinstance(node, FusedConv):
        images = timing_images(node, network, weights)
        return signature(node, network, weights, images)
    shapes = [network.shapes[name][1:] for name in (node.value, *node.inputs())]
    dtype = str(network.dtypes[node.value])
    return repr((shapes, dtype, list(map(str, node.operations)), threads))


def _layout(nodes: list[Node], inputs: Sequence[torch.Tensor]) -> str:
    """Channels last where there are convolutions, else as the first input is."""
    if any(isinstance(node, FusedConv) for node in nodes):
        return "channels_last"
    first = inputs[0]
    last = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    if last and not first.is_contiguous():
        return "channels_last"
    return "channels_first"


def has_kernels() -> bool:
    """Whether kernels can be used, the package's or compiled ones. Warns once if not,
    and if nothing can be cached."""
    try:
        tape()
    except EnvironmentUnfitError as error:
        warn_once("torch runs all layers", error)
        return False
    try:
        Cache()
    except EnvironmentUnfitError as error:
        warn_once("torch runs the stacks, and nothing is cached", error)
    return True
