"""Decisions by measurement: a kernel for each convolution, images at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from functools import cached_property, partial

import torch

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.engine.choose import (
    candidates,
    fastest,
    run_of,
    signature,
    timing_images,
)
from memplan.fusing.engine.engine import Engine, images
from memplan.fusing.engine.packs import Made, Packs, Stacks, as_4d
from memplan.fusing.generate import DTYPES
from memplan.fusing.join import is_depthwise, with_depthwise, without_prologues
from memplan.fusing.kernel import Kernel, compiled_many
from memplan.fusing.kernels import tape
from memplan.fusing.layers import (
    DepthwiseStack,
    EagerOp,
    FusedConv,
    Network,
    Node,
    StackNode,
)
from memplan.fusing.options import KERNELS, FuseOptions
from memplan.fusing.patches import cpu_device
from memplan.fusing.reference import reference
from memplan.fusing.triton_stack import DTYPES as GPU_DTYPES
from memplan.fusing.triton_stack import TritonStack
from memplan.graph.arenas import ArenaPool
from memplan.graph.nest import Tensors
from memplan.graph.program import mapped, refs
from memplan.graph.weights import Weights
from memplan.toolchain.cache import Cache
from memplan.toolchain.instructions import cpu
from memplan.version import __version__

Plan = tuple[tuple[str, ...], int]
"""The kernel of each convolution, in order, and how many images go at a time."""

MODEL_IS_FASTER: Plan = ((), 0)

_SUFFIX = ".json"


def read_plan(key: str) -> Plan | None:
    """What was decided for nodes, options, CPU and versions; None if nothing was."""
    with contextlib.suppress(EnvironmentUnfitError, ValueError, TypeError):
        kernels, batch = json.loads(Cache().read(key, _SUFFIX) or b"0")
        return tuple(map(str, kernels)), int(batch)
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


def gpu_stacks(nodes: list[Node], network: Network) -> Stacks:
    """The GPU kernels of each stack, by value, or torch where it runs them.

    Raises EnvironmentUnfitError if Triton is not installed.
    """
    return {
        node.value: TritonStack(node.operations)
        if network.dtypes[node.source] in GPU_DTYPES
        else partial(reference, collapsed(node, network, "channels_first", None))
        for node in nodes
        if isinstance(node, StackNode)
    }


BATCHES = (2, 1, 4)  # images at a time that are tried


class EngineBuilder:
    """Builds engines of a network's nodes; without a compiler torch runs everything,
    after a warning.

    plan: what was decided earlier for the same nodes, options and machine.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what engines are made of
        self,
        weights: Weights,
        network: Network,
        nodes: list[Node],
        inputs: Tensors,
        expected: object,
        options: FuseOptions,
        arena_pool: ArenaPool,
    ) -> None:
        self._arena_pool = arena_pool
        self._weights, self.network, self._nodes = weights, network, nodes
        self.inputs, self._options = inputs, options
        self._expected = expected
        self._convolutions = [each for each in nodes if isinstance(each, FusedConv)]
        self.device = str(next(iter(inputs.values())).device)
        self.layout = _layout(nodes, inputs)
        self.own = self.device == "cpu" and has_kernels()
        self._lacking = self.device == "cpu" and not self.own
        self._made: Made = {}
        self._timed: dict[tuple[str, ...], str] = {}  # the fastest of some kernels
        self._near: dict[str, list[str]] = {}  # kernels that may be a node's fastest
        self.images = images(network)
        self._depthwise = self._stacks_of_depthwise()
        keys = [_node_key(node, network, weights, self.images) for node in nodes]
        parts = (
            [self.layout, *keys], self.images, repr(options), cpu(), __version__,
            torch.__version__,
        )  # fmt: skip
        self._key = hashlib.sha256(repr(parts).encode()).hexdigest()
        self.plan = read_plan(self._key)
        if self.plan != MODEL_IS_FASTER and not self._is_possible(self.plan):
            self.plan = None

    def _is_possible(self, plan: Plan | None) -> bool:
        """Whether each convolution can run by what was decided for it."""
        kernels, batch = plan or MODEL_IS_FASTER
        given = self.network, self._weights, KERNELS
        if batch < 1 or len(kernels) != len(self._convolutions):
            return False
        return all(
            kernel in (*candidates(node, *given), "onednn")
            for node, kernel in zip(self._convolutions, kernels, strict=True)
        )

    def fastest(self, kernels: tuple[str, ...], batch: int) -> Plan:
        """The plan whose convolutions run as the fastest of `kernels`."""
        chosen = [self._kernel(node, kernels, batch) for node in self._convolutions]
        return tuple(chosen), batch

    def engine(self, plan: Plan) -> Engine:
        """The engine of a plan."""
        packs = self.packs(plan)
        engine = Engine(packs, plan[1], self.layout, self._arena_pool)
        engine.learn(self._expected, self.inputs)
        return engine

    def packs(self, plan: Plan) -> Packs:
        """The nodes of a plan, with all that their kernels need of the model."""
        kernels, _ = plan
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
        given = self._weights, self.network, nodes, chosen, self._stacks(nodes)
        return Packs(*given, self._made)

    def _kernel(self, node: FusedConv, wanted: tuple[str, ...], batch: int) -> str:
        if not self.own:
            return "onednn"
        names = candidates(node, self.network, self._weights, wanted)
        stack = self._depthwise[node.value] if "depthwise" in names else None
        if stack is not None and not isinstance(self._kernels.get(stack.value), Kernel):
            names = [name for name in names if name != "depthwise"] or ["onednn"]
        if len(names) == 1:
            return names[0]
        images = timing_images(node, self.network, self._weights, batch)
        known = signature(node, self.network, self._weights, images)
        if stack is not None:
            known += f" {', '.join(map(str, stack.operations))}"
        key = (known, *names)
        if key not in self._timed:
            before = self._near.get(node.value, names)
            left = [name for name in names if name in before] or names
            near = [*left] if len(left) == 1 else self._fastest(node, images, left)
            self._near.setdefault(node.value, near)
            self._timed[key] = near[0]
        return self._timed[key]

    def _fastest(self, node: FusedConv, images: int, names: list[str]) -> list[str]:
        """See `fastest`."""
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
        if self.device != "cpu":
            return gpu_stacks(nodes, self.network)
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

    def write(self, plan: Plan) -> None:
        """Cache a decision, unless kernels are missing that may exist later."""
        if not self._lacking:
            write_plan(self._key, plan)

    def batches(self) -> list[int]:
        """Batch sizes to try: all images first, then 2, which shows best whether fewer
        pay."""
        wanted = self._options.micro_batch
        if wanted is not None:
            return [min(wanted, self.images)]
        names = (*self.network.inputs, *refs(self.network.outputs))
        shapes = [self.network.shapes.get(name, ()) for name in names]
        if not all(shape and shape[0] == self.images for shape in shapes):
            return [self.images]  # some have no row for each image
        return [self.images, *(each for each in BATCHES if each < self.images)]


def _node_key(node: Node, network: Network, weights: Weights, count: int) -> str:
    """What a node's time depends on, as text: part of the key of a decision."""
    if isinstance(node, FusedConv):
        return signature(node, network, weights, count)
    shape, dtype = network.shapes.get(node.value), network.dtypes.get(node.value)
    taken = [network.shapes.get(name) for name in node.inputs()]
    what: object = None
    if isinstance(node, StackNode):
        what = list(map(str, node.operations))
    elif isinstance(node, EagerOp):
        what = node.op.key, mapped((node.op.args, node.op.kwargs), lambda _: None)
    kind = type(node).__name__
    return repr((kind, shape, str(dtype), taken, what, torch.get_num_threads()))


def _layout(nodes: list[Node], inputs: Tensors) -> str:
    """Channels last where there are convolutions, else as the first input is."""
    first = next(iter(inputs.values()))
    if first.device.type == "cpu" and any(
        isinstance(node, FusedConv) for node in nodes
    ):
        return "channels_last"
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
