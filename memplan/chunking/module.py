"""An exported module that runs in chunks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from memplan.chunking.code import compiled, source
from memplan.chunking.given import Signature
from memplan.chunking.groupnorm import rejoined
from memplan.chunking.parts import Target
from memplan.errors import InputError
from memplan.graph.export import Exported
from memplan.graph.program import Program


class Weights(Mapping[str, Any]):
    """A model's parameters and buffers as they are now, by name, and constants."""

    def __init__(self, model: Any, constants: dict[str, Any]) -> None:
        self._model, self.constants = model, constants

    def __getitem__(self, name: str) -> Any:
        owner, _, attribute = name.rpartition(".")
        try:
            return getattr(self._model.get_submodule(owner), attribute)
        except AttributeError:
            return self.constants[name]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("weights are looked up by name")

    def __len__(self) -> int:
        raise TypeError("weights are looked up by name")


class OtherArgumentsError(InputError):
    """Arguments that a module was not chunked for."""


class Chunk:
    """One exported module and the program that takes its place.

    Called like the module, on inputs of the shapes, dtypes and devices it was exported
    with. Raises InputError for others.
    """

    def __init__(self, target: Target, program: Program, name: str) -> None:
        """target: the module, and its program without loops; program: with them."""
        exported = target.exported
        self.original, self.program = target.program, rejoined(program)
        self.source = source(self.program, f"{name}, in chunks")
        self._run: Callable[..., Any] = compiled(self.source, name)
        self._weights = Weights(target.module, exported.constants)
        self._module, self._name = target.module, name
        self._in_spec, self._out_spec = exported.in_spec, exported.out_spec
        self._kinds = [_kind(node.meta.get("val")) for node in _inputs(exported)]
        places, names = _form(self._in_spec)
        self._signature = Signature(target.module.forward, places, names)
        self._autocast = autocast_state()

    def __deepcopy__(self, memo: dict[int, Any]) -> Chunk:
        """A copy that uses the copied model's weights."""
        other = copy.copy(self)
        other._module = copy.deepcopy(self._module, memo)
        other._weights = Weights(other._module, self._weights.constants)
        return other

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch
        from torch.utils import _pytree as pytree

        leaves, spec = pytree.tree_flatten(self._signature.arranged(args, kwargs))
        if spec != self._in_spec:
            raise OtherArgumentsError(
                f"{self._name} was chunked for other arguments than it is given; chunk "
                "it with arguments like these"
            )
        tensors = [
            leaf
            for leaf, kind in zip(leaves, self._kinds, strict=True)
            if self._fits(leaf, kind)
        ]
        self._check_weights()
        if autocast_state() != self._autocast:
            raise InputError(
                f"{self._name} was chunked {_autocast_told(self._autocast)}, and is "
                f"called {_autocast_told(autocast_state())}; chunk it as it is called"
            )
        # The casts that autocast makes are in the program.
        with torch.no_grad(), torch.autocast(self._autocast[0], enabled=False):
            result = self._run(tensors, self._weights)
        return pytree.tree_unflatten(list(result), self._out_spec)

    def _check_weights(self) -> None:
        """Raise InputError if a parameter or buffer is not as it was exported."""
        for name, place in self.program.constants.items():
            meta, tensor = self.program.metas[name], self._weights[place]
            found = tuple(tensor.shape), tensor.dtype, str(tensor.device)
            if found != (meta.shape, meta.dtype, meta.device):
                raise InputError(
                    f"{self._name} was chunked with {place} of "
                    f"{_told(meta.shape, meta.dtype, meta.device)}, and it is of "
                    f"{_told(*found)} now; chunk it again"
                )

    def _fits(self, leaf: Any, kind: Any) -> bool:
        """Whether an input is a tensor. Raises InputError if it is not as exported."""
        import torch

        if not isinstance(kind, Kind):
            if leaf != kind:
                raise OtherArgumentsError(
                    f"{self._name} was chunked with {kind!r}, and is given {leaf!r}; "
                    "chunk it with that"
                )
            return False
        if not isinstance(leaf, torch.Tensor):
            raise OtherArgumentsError(
                f"{self._name} takes a tensor of {kind.shape} there"
            )
        found = Kind(tuple(leaf.shape), leaf.dtype, str(leaf.device))
        if found != kind:
            raise OtherArgumentsError(
                f"{self._name} was chunked for an input of {_told(*kind)}, and is "
                f"given one of {_told(*found)}; chunk it with such inputs, or "
                "call its prepare() with them"
            )
        return True


def _form(spec: Any) -> tuple[int, list[str]]:
    """How many arguments a call had by place, and which by name."""
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten([None] * spec.num_leaves, spec)
    return len(args), list(kwargs)


class Kind(NamedTuple):
    """What a tensor among the inputs must be like."""

    shape: tuple[int, ...]
    dtype: Any
    device: str


def _kind(value: Any) -> Any:
    """The Kind of a tensor; any other value is its own."""
    if not hasattr(value, "untyped_storage"):
        return value
    return Kind(tuple(map(int, value.shape)), value.dtype, str(value.device))


def autocast_state() -> tuple[str, bool, Any]:
    """The device whose autocast counts here, whether it is on, and to which dtype."""
    import torch

    device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    on = bool(torch.is_autocast_enabled(device))
    return device, on, torch.get_autocast_dtype(device) if on else None


def _autocast_told(state: tuple[str, bool, Any]) -> str:
    device, on, dtype = state
    if not on:
        return "without autocast"
    return f"under autocast to {str(dtype).removeprefix('torch.')} on {device}"


def _inputs(exported: Exported) -> list[Any]:
    """The exported graph's placeholders that are the user's."""
    users = set(exported.signature.user_inputs)
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    taken = {
        **exported.signature.inputs_to_parameters,
        **exported.signature.inputs_to_buffers,
        **exported.signature.inputs_to_lifted_tensor_constants,
    }
    return [
        node for node in placeholders if node.name in users or node.name not in taken
    ]


def _told(shape: tuple[int, ...], dtype: Any, device: Any) -> str:
    return (
        f"{'×'.join(map(str, shape))} {str(dtype).removeprefix('torch.')} on {device}"
    )
