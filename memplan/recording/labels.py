"""What the blocks of a program hold: parameters, gradients, optimizer state."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from memplan.recording.boundary import named_parts
from memplan.recording.held import tensors_in
from memplan.trace.trace import Category


class Labels:
    """Labels the tensors of the outermost modules and the optimizers that it meets."""

    def __init__(
        self,
        name_module: Callable[[str, Any], int],
        label: Callable[[Sequence[Any], Category, Sequence[int]], None],
        unknown: int,
    ) -> None:
        """name_module: is given a module and its name, and numbers it. label: is told
        what tensors hold, and the numbers of their modules, or of none; unknown: the
        number where the module is not known."""
        self._name_module, self._label, self._unknown = name_module, label, unknown
        self._numbers: dict[int, int] = {}  # of modules, by id of their parameters
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}

    def meet(self, root: Any) -> list[Any]:
        """Name an outermost module and its parts; returns parameters and buffers."""
        self._roots[id(root)] = weakref.ref(root)
        owners: dict[int, int] = {}  # of parameters: the first of those that share one
        held: dict[int, Any] = {}
        for name, part in named_parts(root):
            number = self._name_module(name or type(root).__name__, part)
            for each in (*_own(part._parameters), *_own(part._buffers)):
                owners.setdefault(id(each), number)
                held.setdefault(id(each), each)
        # Python may reuse the id of a deleted parameter.
        self._numbers.update(owners)
        return list(held.values())

    def meet_optimizer(self, optimizer: Any) -> None:
        """Label its parameters, the first time that it is met; what it holds in the end
        is labelled by `all`."""
        known = self._optimizers.get(id(optimizer))
        if known is not None and known() is optimizer:
            return
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        self.parameters(parameters_of(optimizer))

    @property
    def has_optimizers(self) -> bool:
        """Whether it met any."""
        return bool(self._optimizers)

    def parameters(self, parameters: Iterable[Any]) -> None:
        """Label parameters and buffers."""
        each = list(parameters)
        self._label(each, Category.PARAMETERS, list(map(self._number, each)))

    def gradients(self, parameters: Iterable[Any]) -> None:
        """Label the gradients that these parameters have."""
        with unseen():
            # PyTorch warns of the others: functional_call puts such in their place.
            found = [each.grad for each in parameters if each.is_leaf]
        self._label(
            [each for each in found if each is not None], Category.GRADIENTS, []
        )

    def state(self, optimizer: Any) -> None:
        """Label the state of an optimizer."""
        pairs = [
            (tensor, self._number(parameter))
            for parameter, state in optimizer.state.items()
            for tensor in tensors_in(state)
        ]
        numbers = [number for _, number in pairs]
        self._label([each for each, _ in pairs], Category.OPTIMIZER_STATE, numbers)

    def inputs(self, arguments: object) -> None:
        """Label the tensors among the arguments of an outermost module."""
        self._label(list(tensors_in(arguments)), Category.INPUTS, [])

    def all(self) -> None:
        """Label what the modules and optimizers that are left hold now."""
        for ref in self._optimizers.values():
            if (optimizer := ref()) is not None:
                self.gradients(parameters_of(optimizer))
                self.state(optimizer)
        for ref in self._roots.values():
            if (module := ref()) is not None:
                self.parameters(parameters_in(module))
                self.gradients(parameters_in(module))

    def _number(self, parameter: Any) -> int:
        return self._numbers.get(id(parameter), self._unknown)


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """The parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def parameters_in(module: Any) -> Iterator[Any]:
    """The parameters of a module and its submodules, even if its class overrides
    `parameters`."""
    held = (_own(part._parameters) for _, part in named_parts(module))
    return itertools.chain.from_iterable(held)


def _own(tensors: Any) -> list[Any]:
    """A module's own parameters or buffers, without None."""
    return [each for each in tensors.values() if each is not None]


def unseen() -> AbstractContextManager[object]:
    """A context in which the program's modes and tensor subclasses are not called."""
    disabled: AbstractContextManager[object]
    disabled = sys.modules["torch"]._C.DisableTorchFunction()
    return disabled
