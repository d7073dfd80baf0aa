"""A model on a GPU: its stacks are Triton kernels, torch runs its other operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from memplan.compiling.bench import NO_GAIN, accepted
from memplan.compiling.outcomes import Seen, by_torch
from memplan.compiling.report import Fallback
from memplan.errors import InputError
from memplan.fusing.collapse import Stack
from memplan.fusing.join import join
from memplan.fusing.layers import FusedConv, Network, Node, StackNode
from memplan.fusing.options import FuseOptions, Joining
from memplan.fusing.packs import Packs, Stacks, as_4d
from memplan.fusing.recognise import recognise
from memplan.fusing.reference import reference
from memplan.fusing.triton_stack import DTYPES, TritonStack
from memplan.graph.call import Inputs
from memplan.graph.capture import Target, capture
from memplan.graph.check import relative_error, results_of
from memplan.graph.clock import seconds
from memplan.graph.program import mapped, refs
from memplan.graph.weights import Watch, places

# torch runs convolutions, and nothing is joined with them.
APART = Joining(norms=False, epilogues=False, prologues=False, pools=False)


def stacks_of(nodes: list[Node], network: Network) -> Stacks:
    """What computes each stack, by value: Triton, or torch for types that it has no
    kernels of. Raises EnvironmentUnfitError if Triton is not installed."""
    return {
        node.value: TritonStack(node.operations)
        if network.dtypes[node.source] in DTYPES
        else partial(reference, Stack(tuple(node.operations)))
        for node in nodes
        if isinstance(node, StackNode)
    }


class OnGPU:
    """What runs for inputs of the form that `target` was captured with."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.network = recognise(target.program, target.module)
        self._nodes = join(self.network, APART)
        self._ops = {layer.name: layer.op for layer in self.network.layers}
        self._stacks = stacks_of(self._nodes, self.network)
        last = {name: i for i, x in enumerate(self._nodes) for name in x.inputs()}
        kept = set(refs(self.network.outputs))
        self._gone: list[list[str]] = [[] for _ in self._nodes]
        for name in last.keys() - kept:
            self._gone[last[name]].append(name)
        self._bind()

    def _bind(self) -> None:
        """Take the weights as they are now."""
        target, known = self._target, places(self._target.module)
        own = [each for each in self.network.constants.values() if each in known]
        watch = Watch(target.module, own, target.numbers, target.caches)
        torchs = {x.value: "onednn" for x in self._nodes if isinstance(x, FusedConv)}
        given = target.weights, self.network, self._nodes, torchs, self._stacks
        self._packs = Packs(*given)
        self.watch = watch  # last: other threads then take the weights for current

    def seen(self) -> Seen:
        """The model's layers as torch runs them."""
        return Seen(list(map(by_torch, self.network.layers)), self.network)

    def fuses(self) -> bool:
        """Whether it has any stacks."""
        return bool(self._stacks)

    def stale(self) -> bool:
        """Whether the model has changed in more than its weights' values."""
        watch = self.watch
        if not watch.same():
            return True
        return bool(watch.other_number()) or watch.other_kinds()

    def run(self, inputs: Inputs) -> object:
        """The model's results."""
        if not self.watch.same_weights():
            self._bind()
        weights, network = self._target.weights, self.network
        values: dict[str, Any] = {
            name: weights[place] for name, place in network.constants.items()
        }
        tensors = (each for each in inputs.leaves() if isinstance(each, Tensor))
        values.update(zip(network.inputs, tensors, strict=True))
        for node, gone in zip(self._nodes, self._gone, strict=True):
            if isinstance(node, StackNode):
                values[node.value] = self._stack(node, values)
            else:
                for name in node.names():
                    values[name] = self._called(name, values)
            for name in gone:
                values.pop(name, None)
        found = mapped(network.outputs, lambda ref: values[ref.name])
        return self._target.rebuild(list(found))

    def _stack(self, node: StackNode, values: dict[str, Any]) -> Tensor:
        def planes(name: str) -> Tensor:
            value: Tensor = values[name]
            return value.reshape(as_4d(tuple(value.shape)))

        kernel: Callable[..., Tensor] = self._stacks[node.value]  # type: ignore[assignment]
        found = kernel(planes(node.source), self._packs.tensors(node, planes))
        return found.reshape(self.network.shapes[node.value])

    def _called(self, name: str, values: dict[str, Any]) -> object:
        op = self._ops[name]
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
        return op.target(*args, **kwargs)


def prepare_on_gpu(
    model: nn.Module, inputs: Inputs, options: FuseOptions
) -> OnGPU | Fallback:
    """The model, which has no effects, for inputs of this form on a GPU, or why it runs
    unchanged. Raises MemplanError."""
    made = OnGPU(capture(model, inputs, quick=True))
    if not made.fuses():
        return Fallback("it has no supported layers", made.seen())

    def run(*args: object, **kwargs: object) -> object:
        return made.run(Inputs(args, kwargs))

    expected = results_of(inputs, model, model)
    found = results_of(inputs, model, run, len(expected))
    error = max(map(relative_error, expected, found))
    if error > accepted(expected, options):
        raise InputError(f"the fused results differ by {error:.1e}")
    if options.measure:
        device = next(x.device for x in inputs.leaves() if isinstance(x, Tensor))
        runs = [partial(each, *inputs.args, **inputs.kwargs) for each in (run, model)]
        took, plain = seconds(runs, str(device))
        if took > NO_GAIN * plain:
            times = f"{took / plain:.2f} times as long"
            reason = f"it would take {times}; the limit is {NO_GAIN}"
            return Fallback(reason, made.seen())
    return made
