"""Decisions by measurement: a kernel for each convolution, images at a time."""

from __future__ import annotations

from typing import Any

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.engine.build import Engine, images
from memplan.fusing.engine.choose import candidates, fastest, few, signature
from memplan.fusing.engine.decisions import Decisions
from memplan.fusing.engine.depthwise import is_depthwise, with_depthwise
from memplan.fusing.engine.packs import Packs, Weights
from memplan.fusing.engine.slabs import Slabs
from memplan.fusing.engine.split import without_prologues
from memplan.fusing.engine.stacks import kernels as stack_kernels
from memplan.fusing.engine.stacks import on_gpu, warn_once
from memplan.fusing.kernel import Kernel
from memplan.fusing.kernels import tape
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Called, Depthwise, Joined, Node, Stacked
from memplan.fusing.options import FuseOptions
from memplan.graph.program import mapped, refs
from memplan.toolchain.cache import Cache

BATCHES = (2, 1, 4)  # images at a time that are tried


class Maker:
    """Makes engines of a network's nodes for inputs as given.

    Raises nothing where there is no compiler: torch runs everything, after a warning.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what engines are made of
        self,
        model: Any,
        network: Network,
        nodes: list[Node],
        outputs: Any,
        inputs: dict[str, Any],
        options: FuseOptions,
        slabs: Slabs,
    ) -> None:
        self._slabs = slabs
        self._model, self._network, self._nodes = model, network, nodes
        self._outputs, self._inputs, self._options = outputs, inputs, options
        self.device = str(next(iter(inputs.values())).device)
        self.layout = _layout(nodes, inputs)
        self.own = self.device == "cpu" and has_kernels()
        self._lacking = self.device == "cpu" and not self.own
        self._made: dict[tuple[str, str], Weights] = {}
        self._near: dict[str, list[str]] = {}  # kernels that may be a node's fastest
        self.images = images(network)
        self._depthwise = self._stacks_of_depthwise()
        self._compiled: dict[str, Any] | None = None  # kernels of these stacks
        keys = [_told_by(node, network, model, self.images) for node in nodes]
        self.decisions = Decisions.of([self.layout, *keys], self.images, options)

    def engine(self, kernels: tuple[str, ...], batch: int) -> Engine:
        """An engine whose convolutions run as the fastest of `kernels`."""
        if self._depthwise and "depthwise" in kernels:
            self._kernels()
        chosen = {
            node.value: self._kernel(node, kernels, batch)
            for node in self._nodes
            if isinstance(node, Joined)
        }
        nodes = without_prologues(self._nodes, self._network, chosen)
        nodes = self._with_depthwise(
            nodes, {value for value, kernel in chosen.items() if kernel == "depthwise"}
        )
        packs = Packs(
            *(self._model, self._network, nodes, chosen, self._stacks(nodes)),
            made=self._made,
        )
        return Engine(
            self._network, nodes, self._outputs, packs, batch, self.layout, self._slabs
        )

    def _kernel(self, node: Joined, wanted: tuple[str, ...], batch: int) -> str:
        if not self.own:
            return "onednn"
        names = candidates(node, self._network, self._model, wanted)
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
            given = node, self._network, self._model
            near = fastest(*given, images, left, stack)
            known = near[0]
            self._near.setdefault(node.value, near)
            self.decisions.keep_kernel(key, names, known)
        return known

    def _timed_on(self, node: Joined, batch: int) -> tuple[int, str]:
        """How many images a convolution is timed on, and by what name what won is
        kept."""
        images = few(node, self._network, self._model, batch)
        key = signature(node, self._network, self._model, images)
        stack = self._depthwise.get(node.value)
        if stack is not None:
            key += f" {', '.join(map(str, stack.operations))}"
        return images, key

    def _stacks_of_depthwise(self) -> dict[str, Depthwise]:
        """The stacks that depthwise convolutions would be, by their own values."""
        own = {
            node.value
            for node in self._nodes
            if self.own and is_depthwise(node, self._network, self._model)
        }
        found = self._with_depthwise(self._nodes, own) if own else []
        return {
            each.convolution.value: each
            for each in found
            if isinstance(each, Depthwise)
        }

    def _with_depthwise(self, nodes: list[Node], chosen: set[str]) -> list[Node]:
        if not chosen:
            return nodes
        joining = self._options.joining
        return with_depthwise(nodes, self._model, self._outputs, chosen, joining)

    def _ready(self, node: Joined) -> tuple[Depthwise, Kernel] | None:
        """The stack of a depthwise convolution and its kernel, if there is one."""
        stack = self._depthwise[node.value]
        kernel = self._kernels().get(stack.value)
        return (stack, kernel) if isinstance(kernel, Kernel) else None

    def _kernels(self) -> dict[str, Any]:
        """Kernels of all stacks, by value, were every depthwise convolution one: they
        are compiled together, which takes less time, and the same whatever is chosen,
        so that they are found another time."""
        if self._compiled is None:
            nodes = self._with_depthwise(self._nodes, set(self._depthwise))
            self._compiled = self._stacks(nodes)
        return self._compiled

    def _stacks(self, nodes: list[Node]) -> dict[str, Any]:
        most = self._options.max_steps
        if self.device == "cpu":
            found, missing = stack_kernels(
                nodes, self._network, self.layout, most, self.own
            )
            self._lacking = self._lacking or missing
            return found
        return on_gpu(nodes, self._network, self.device, most)

    def write(self) -> None:
        """Keep what was decided, but not where kernels are lacking that there may be
        another time."""
        if not self._lacking:
            self.decisions.write()

    def keep(self, engine: Engine, kernels: tuple[str, ...]) -> None:
        """Keep for the next time what an engine is: it was the best of `kernels`."""
        self.decisions.keep_plan(kernels, engine.batch)
        for node in self._nodes:
            if isinstance(node, Joined) and self.own:
                _, key = self._timed_on(node, engine.batch)
                names = candidates(node, self._network, self._model, kernels)
                self.decisions.keep_kernel(key, names, engine.kernels[node.value])

    def batches(self) -> list[int]:
        """Numbers of images at a time to be tried, all of them first, then the one that
        tells best whether fewer pay."""
        wanted = self._options.micro_batch
        if wanted is not None:
            return [min(wanted, self.images)]
        if not self.separable():
            return [self.images]
        return [self.images, *(each for each in BATCHES if each < self.images)]

    def separable(self) -> bool:
        """Whether inputs and outputs have one row an image, as far as shapes tell."""
        names = (*self._network.inputs, *refs(self._outputs))
        shapes = [self._network.shapes.get(name, ()) for name in names]
        return all(shape and shape[0] == self.images for shape in shapes)


def _told_by(node: Node, network: Network, model: Any, count: int) -> str:
    """What a node's time depends on, and what its network is told by, as text."""
    import torch

    if isinstance(node, Joined):
        return signature(node, network, model, count)
    shape, dtype = network.shapes.get(node.value), network.dtypes.get(node.value)
    taken = [network.shapes.get(name) for name in node.inputs()]
    what: Any = None
    if isinstance(node, Stacked):
        what = list(map(str, node.operations))
    elif isinstance(node, Called):
        module = isinstance(node.op.target, torch.nn.Module)
        called = str(node.op.target) if module else node.op.key
        what = called, mapped((node.op.args, node.op.kwargs), lambda _: None)
    kind = type(node).__name__
    return repr((kind, shape, str(dtype), taken, what, torch.get_num_threads()))


def _layout(nodes: list[Node], inputs: dict[str, Any]) -> str:
    """Channels last where there are convolutions, else as the first input is."""
    import torch

    first = next(iter(inputs.values()))
    if first.device.type == "cpu" and any(isinstance(node, Joined) for node in nodes):
        return "channels_last"
    last = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    if last and not first.is_contiguous():
        return "channels_last"
    return "channels_first"


def has_kernels() -> bool:
    """Whether there are kernels, the package's or compiled; says once, as a warning,
    why there are none, or why there is no cache for what is compiled and measured."""
    try:
        tape()
    except EnvironmentUnfitError as error:
        warn_once("torch runs all layers", error)
        return False
    try:
        Cache()
    except EnvironmentUnfitError as error:
        warn_once("torch runs the stacks, and nothing is kept", error)
    return True
