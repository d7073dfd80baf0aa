"""Decisions by measurement: a kernel for each convolution, images at a time."""

from __future__ import annotations

import hashlib
import json
import warnings

import torch

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.engine.choose import candidates, fastest, signature, timing_images
from memplan.fusing.engine.engine import Engine, images
from memplan.fusing.engine.packs import PackedWeights, Packs, Stacks, as_4d
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
from memplan.fusing.memory import ArenaPool
from memplan.fusing.options import KERNELS, FuseOptions
from memplan.fusing.patches import cpu_device
from memplan.fusing.triton_stack import DTYPES as GPU_DTYPES
from memplan.fusing.triton_stack import TritonStack
from memplan.graph.nest import Tensors
from memplan.graph.program import mapped, refs
from memplan.graph.weights import Weights
from memplan.toolchain.cache import Cache
from memplan.toolchain.instructions import cpu
from memplan.version import __version__

_SUFFIX = ".json"


class Decisions:
    """Kernels by convolution and the batch size, for one network, input shape, CPU and
    number of threads."""

    def __init__(self, key: str, found: dict[str, object]) -> None:
        self._key, self._found = key, found
        self._changed = False
        self.kept = self.plan is not None  # from an earlier time

    @classmethod
    def of(cls, signatures: list[str], images: int, options: FuseOptions) -> Decisions:
        """The cached decisions for these nodes, or empty ones."""
        parts = (
            signatures, images, repr(options), cpu(), __version__, torch.__version__
        )  # fmt: skip
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        cache = _cache()
        data = None if cache is None else cache.read(key, _SUFFIX)
        try:
            found = json.loads(data) if data else {}
        except ValueError:
            found = {}
        return cls(key, found if isinstance(found, dict) else {})

    def kernel(self, signature: str, names: list[str]) -> str | None:
        """The kernel chosen among `names` for a convolution; None if not known."""
        found = self._found.get(f"{signature} {','.join(names)}")
        return found if found in names else None

    def set_kernel(self, signature: str, names: list[str], kernel: str) -> None:
        self._found[f"{signature} {','.join(names)}"] = kernel
        self._changed = True

    @property
    def plan(self) -> tuple[tuple[str, ...], int] | None:
        """The kernels and batch size that won; None if not known; no kernels and 0
        images if the model itself was faster."""
        found = self._found.get("plan")
        if not isinstance(found, list) or len(found) != 2:
            return None
        kernels, batch = found
        if not isinstance(kernels, list) or not isinstance(batch, int):
            return None
        if (not kernels) != (batch == 0) or not set(map(str, kernels)) <= set(KERNELS):
            return None
        return tuple(kernels), batch

    def set_plan(self, kernels: tuple[str, ...], batch: int) -> None:
        self._found["plan"] = [list(kernels), batch]
        self._changed = True

    def write(self) -> None:
        """Cache what is new; without a usable cache, do nothing."""
        cache = _cache() if self._changed else None
        if cache is not None:
            cache.write(self._key, _SUFFIX, json.dumps(self._found).encode())
            self._changed = False


def _cache() -> Cache | None:
    try:
        return Cache()
    except EnvironmentUnfitError:
        return None


def collapsed(
    node: StackNode, network: Network, layout: str, max_steps: int | None
) -> Stack:
    """A node's stack, cut into sequences for this CPU's caches."""
    _, _, height, width = as_4d(network.shapes[node.source])
    device = cpu_device(layout)
    return collapse(tuple(node.operations), (height, width), device, max_steps)


def stack_kernels(
    nodes: list[Node],
    network: Network,
    layout: str,
    max_steps: int | None,
    own: bool,
) -> tuple[Stacks, bool]:
    """The kernel of each stack, by value, or the stack itself if torch runs it; and
    whether some could not be compiled, after one warning.

    own: whether kernels can be used at all.
    """
    found: Stacks = {}
    groups: dict[str, list[tuple[str, Stack]]] = {}
    missing = False
    for node in nodes:
        if isinstance(node, StackNode):
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
    """Warn how models run on this machine, unless this process has warned of the same
    or of the same cause before."""
    known = not _told.isdisjoint((what, str(why)))
    _told.update((what, str(why)))
    if not known:
        warnings.warn(f"memplan.fuse: {what}: {why}", stacklevel=2)


def gpu_stacks(nodes: list[Node], network: Network) -> Stacks:
    """The GPU kernels of each stack, by value, or the stack itself if torch runs it.

    Raises EnvironmentUnfitError if Triton is not installed.
    """
    return {
        node.value: TritonStack(node.operations)
        if network.dtypes[node.source] in GPU_DTYPES
        else collapsed(node, network, "channels_first", None)
        for node in nodes
        if isinstance(node, StackNode)
    }


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


BATCHES = (2, 1, 4)  # images at a time that are tried


class EngineBuilder:
    """Builds engines of a network's nodes; without a compiler torch runs everything,
    after a warning."""

    def __init__(  # noqa: PLR0913, PLR0917 - what engines are made of
        self,
        weights: Weights,
        network: Network,
        nodes: list[Node],
        outputs: object,
        inputs: Tensors,
        options: FuseOptions,
        arena_pool: ArenaPool,
    ) -> None:
        self._arena_pool = arena_pool
        self._weights, self.network, self._nodes = weights, network, nodes
        self._outputs, self.inputs, self._options = outputs, inputs, options
        self.device = str(next(iter(inputs.values())).device)
        self.layout = _layout(nodes, inputs)
        self.own = self.device == "cpu" and has_kernels()
        self._lacking = self.device == "cpu" and not self.own
        self._made: dict[tuple[str, str], PackedWeights] = {}
        self._near: dict[str, list[str]] = {}  # kernels that may be a node's fastest
        self.images = images(network)
        self._depthwise = self._stacks_of_depthwise()
        self._compiled: Stacks | None = None  # kernels of these stacks
        keys = [_node_key(node, network, weights, self.images) for node in nodes]
        self.decisions = Decisions.of([self.layout, *keys], self.images, options)

    def engine(self, kernels: tuple[str, ...], batch: int) -> Engine:
        """An engine whose convolutions run as the fastest of `kernels`."""
        if self._depthwise and "depthwise" in kernels:
            self._kernels()
        chosen = {
            node.value: self._kernel(node, kernels, batch)
            for node in self._nodes
            if isinstance(node, FusedConv)
        }
        nodes = without_prologues(self._nodes, self.network, chosen)
        nodes = self._with_depthwise(
            nodes, {value for value, kernel in chosen.items() if kernel == "depthwise"}
        )
        packs = Packs(
            *(self._weights, self.network, nodes, chosen, self._stacks(nodes)),
            made=self._made,
        )
        return Engine(
            self.network,
            nodes,
            self._outputs,
            packs,
            batch,
            self.layout,
            self._arena_pool,
        )

    def _kernel(self, node: FusedConv, wanted: tuple[str, ...], batch: int) -> str:
        if not self.own:
            return "onednn"
        names = candidates(node, self.network, self._weights, wanted)
        if names == ["depthwise"] and self._ready(node) is None:
            return "onednn"
        if len(names) == 1:
            return names[0]
        images, key = self._timed_on(node, batch)
        known = self.decisions.kernel(key, names)
        if known is None:
            before = self._near.get(node.value, names)
            left = [name for name in names if name in before] or names
            stack = self._ready(node) if "depthwise" in left else None
            if stack is None:
                left = [name for name in left if name != "depthwise"] or ["onednn"]
            given = node, self.network, self._weights
            near = fastest(*given, images, left, stack)
            known = near[0]
            self._near.setdefault(node.value, near)
            self.decisions.set_kernel(key, names, known)
        return known

    def _timed_on(self, node: FusedConv, batch: int) -> tuple[int, str]:
        """How many images a convolution is timed on, and the key of the decision."""
        images = timing_images(node, self.network, self._weights, batch)
        key = signature(node, self.network, self._weights, images)
        stack = self._depthwise.get(node.value)
        if stack is not None:
            key += f" {', '.join(map(str, stack.operations))}"
        return images, key

    def _stacks_of_depthwise(self) -> dict[str, DepthwiseStack]:
        """The stacks that depthwise convolutions would be, by their own values."""
        own = {
            node.value
            for node in self._nodes
            if self.own and is_depthwise(node, self.network, self._weights)
        }
        found = self._with_depthwise(self._nodes, own) if own else []
        return {
            each.convolution.value: each
            for each in found
            if isinstance(each, DepthwiseStack)
        }

    def _with_depthwise(self, nodes: list[Node], chosen: set[str]) -> list[Node]:
        if not chosen:
            return nodes
        joining = self._options.joining
        return with_depthwise(nodes, self._weights, self._outputs, chosen, joining)

    def _ready(self, node: FusedConv) -> tuple[DepthwiseStack, Kernel] | None:
        """The stack of a depthwise convolution and its kernel, if there is one."""
        stack = self._depthwise[node.value]
        kernel = self._kernels().get(stack.value)
        return (stack, kernel) if isinstance(kernel, Kernel) else None

    def _kernels(self) -> Stacks:
        """Kernels of all stacks as if every depthwise convolution were one: compiling
        them together takes less time, and the source does not depend on decisions."""
        if self._compiled is None:
            nodes = self._with_depthwise(self._nodes, set(self._depthwise))
            self._compiled = self._stacks(nodes)
        return self._compiled

    def _stacks(self, nodes: list[Node]) -> Stacks:
        most = self._options.max_steps
        if self.device == "cpu":
            found, missing = stack_kernels(
                nodes, self.network, self.layout, most, self.own
            )
            self._lacking = self._lacking or missing
            return found
        return gpu_stacks(nodes, self.network)

    def write(self) -> None:
        """Cache the decisions, unless kernels are missing that may exist later."""
        if not self._lacking:
            self.decisions.write()

    def keep(self, engine: Engine, kernels: tuple[str, ...]) -> None:
        """Store an engine as the best of `kernels`."""
        self.decisions.set_plan(kernels, engine.batch)
        for node in self._nodes:
            if isinstance(node, FusedConv) and self.own:
                _, key = self._timed_on(node, engine.batch)
                names = candidates(node, self.network, self._weights, kernels)
                self.decisions.set_kernel(key, names, engine.kernels[node.value])

    def batches(self) -> list[int]:
        """Batch sizes to try: all images first, then 2, which shows best whether fewer
        pay."""
        wanted = self._options.micro_batch
        if wanted is not None:
            return [min(wanted, self.images)]
        if not self.separable():
            return [self.images]
        return [self.images, *(each for each in BATCHES if each < self.images)]

    def separable(self) -> bool:
        """Whether all inputs and outputs have one row per image, by their shapes."""
        names = (*self.network.inputs, *refs(self._outputs))
        shapes = [self.network.shapes.get(name, ()) for name in names]
        return all(shape and shape[0] == self.images for shape in shapes)


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
