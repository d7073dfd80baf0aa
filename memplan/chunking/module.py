"""Modules that run in chunks, in the place of those they were made from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from memplan.chunking.canonical import rejoined
from memplan.chunking.code import compiled, source
from memplan.chunking.inputs import Inputs, Signature
from memplan.chunking.parts import Target
from memplan.chunking.plan import ChunkPlan
from memplan.errors import InputError, UsageError
from memplan.graph.export import Exported
from memplan.graph.program import Program

if TYPE_CHECKING:
    from memplan.chunking.shapes import OtherSizes

MAX_SIZES = 64  # input sizes that are kept prepared; the oldest is dropped first


class Weights(Mapping[str, Tensor]):
    """A model's current parameters and buffers by name, and the export's constants."""

    def __init__(self, model: nn.Module, constants: dict[str, Tensor]) -> None:
        self._model, self.constants = model, constants

    def __getitem__(self, name: str) -> Tensor:
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


class Kind(NamedTuple):
    """The shape, torch.dtype and device that an input must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: Tensor) -> Kind:
        """The kind of a tensor, real or fake."""
        return cls(tuple(map(int, tensor.shape)), tensor.dtype, str(tensor.device))

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{'×'.join(map(str, self.shape))} {dtype} on {self.device}"


class Autocast(NamedTuple):
    """The device whose autocast applies, whether it is on, and its dtype."""

    device: str
    on: bool
    dtype: torch.dtype | None

    @classmethod
    def now(cls) -> Autocast:
        """The current state."""
        device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        on = bool(torch.is_autocast_enabled(device))
        return cls(device, on, torch.get_autocast_dtype(device) if on else None)

    def __str__(self) -> str:
        if not self.on:
            return "without autocast"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"under autocast to {dtype} on {self.device}"


class Chunk:
    """One exported module and the program that replaces it.

    It is called like the module, on inputs with the shapes, dtypes and devices of the
    export. Raises InputError for others.
    """

    def __init__(self, target: Target, program: Program, name: str) -> None:
        """target: the module, and its program without loops; program: with loops."""
        exported = target.exported
        self.original, self.program = target.program, rejoined(program)
        self.source = source(self.program, f"{name}, in chunks")
        self._run = compiled(self.source, name)
        self._weights = Weights(target.module, exported.constants)
        self._module, self._name = target.module, name
        self._in_spec, self._out_spec = exported.in_spec, exported.out_spec
        values = (node.meta.get("val") for node in _user_inputs(exported))
        self._kinds: list[object] = [
            Kind.of(value) if hasattr(value, "untyped_storage") else value
            for value in values
        ]
        args, kwargs = pytree.tree_unflatten(
            [None] * self._in_spec.num_leaves, self._in_spec
        )
        self._signature = Signature(target.module.forward, len(args), list(kwargs))
        self._autocast = Autocast.now()

    def __deepcopy__(self, memo: dict[int, object]) -> Chunk:
        """A copy that uses the copied model's weights."""
        other = copy.copy(self)
        other._module = copy.deepcopy(self._module, memo)
        other._weights = Weights(other._module, self._weights.constants)
        return other

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        leaves, spec = pytree.tree_flatten(self._signature.arranged(args, kwargs))
        if spec != self._in_spec:
            raise OtherArgumentsError(
                f"{self._name} was chunked for other arguments than these; chunk it "
                "with arguments like these"
            )
        tensors = [
            leaf
            for leaf, kind in zip(leaves, self._kinds, strict=True)
            if self._fits(leaf, kind)
        ]
        self._check_weights()
        if (now := Autocast.now()) != self._autocast:
            raise InputError(
                f"{self._name} was chunked {self._autocast} and is called {now}; "
                "chunk it as you call it"
            )
        # The program contains the casts that autocast makes.
        with torch.no_grad(), torch.autocast(self._autocast.device, enabled=False):
            result = self._run(tensors, self._weights)
        return pytree.tree_unflatten(list(result), self._out_spec)

    def _check_weights(self) -> None:
        """Raise InputError if a parameter or buffer differs from the exported one."""
        for name, place in self.program.constants.items():
            meta, tensor = self.program.metas[name], self._weights[place]
            found = Kind(tuple(tensor.shape), tensor.dtype, str(tensor.device))
            if found != (meta.shape, meta.dtype, meta.device):
                before = Kind(meta.shape, meta.dtype, meta.device)
                raise InputError(
                    f"{self._name} was chunked with {place} of {before}, and it is of "
                    f"{found} now; chunk it again"
                )

    def _fits(self, leaf: object, kind: object) -> bool:
        """Whether an input is a tensor. Raises InputError if it is not as exported."""
        if not isinstance(kind, Kind):
            if leaf != kind:
                raise OtherArgumentsError(
                    f"{self._name} was chunked with {kind!r}, not {leaf!r}; chunk it "
                    "with that value"
                )
            return False
        if not isinstance(leaf, Tensor):
            raise OtherArgumentsError(
                f"{self._name} takes a tensor of {kind.shape} there"
            )
        found = Kind.of(leaf)
        if found != kind:
            raise OtherArgumentsError(
                f"{self._name} was chunked for an input of {kind}, not {found}; chunk "
                "it with such inputs, or call its prepare() with them"
            )
        return True


def _user_inputs(exported: Exported) -> list[fx.Node]:
    """The exported graph's placeholders that are the user's."""
    signature = exported.signature
    users = set(signature.user_inputs)
    taken = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return [
        node
        for node in exported.graph.nodes
        if node.op == "placeholder" and (node.name in users or node.name not in taken)
    ]


class Sizes(NamedTuple):
    """Inputs up to their sizes (kinds), and the sizes of their tensors."""

    kinds: tuple[object, ...]
    sizes: tuple[tuple[int, ...], ...]


def sizes_of(inputs: Inputs) -> Sizes:
    """The kinds and sizes of inputs, for comparison."""
    leaves, spec = pytree.tree_flatten((inputs.args, inputs.kwargs))
    kinds: list[object] = [spec]
    sizes = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            kinds.append((leaf.dim(), leaf.dtype, str(leaf.device)))
            sizes.append(tuple(leaf.shape))
        else:
            kinds.append(repr(leaf))
    return Sizes(tuple(kinds), tuple(sizes))


class Acceptance(NamedTuple):
    """What a module needs to accept inputs of other sizes.

    signature: of the first call. first: its sizes. others: prepares other sizes.
    always: whether the module prepares itself, without a call of `prepare`.
    """

    signature: Signature
    first: Sizes
    others: OtherSizes
    always: bool


class Chunked(nn.Module):  # type: ignore[misc]
    """A module whose forward runs in chunks; for inference.

    memplan: the ChunkPlan. model: the original, whose current weights are used.
    chunks: what runs in chunks, by path in the model. The path "" is the whole model;
    otherwise the model itself runs, with the parts at these paths replaced.
    """

    def __init__(
        self, model: nn.Module, chunks: Mapping[str, Chunk], plan: ChunkPlan
    ) -> None:
        super().__init__()
        self.model = model
        self.memplan = plan
        self.chunks = dict(chunks)
        self._prepared: dict[tuple[tuple[int, ...], ...], dict[str, Chunk]] = {}
        self._accepted: Acceptance | None = None
        self._warned = False
        self.eval()

    def accept(self, inputs: Inputs, others: OtherSizes, always: bool) -> None:
        """Accept inputs of other sizes than `inputs`, which it was chunked for."""
        signature = Signature(self.model.forward, len(inputs.args), list(inputs.kwargs))
        self._accepted = Acceptance(signature, sizes_of(inputs), others, always)

    def prepare(self, inputs: object) -> None:
        """Prepare for inputs of other sizes; `memplan.chunk` says which forms it takes.

        The regions stay the same; they are checked against the model on these inputs
        and measured. This takes an export, and as much memory as the model itself.
        Raises InputError for inputs that differ in more than sizes, need more memory
        than the first inputs, or run other operators; BudgetError if the budget is not
        kept.
        """
        found = Inputs.of(inputs)
        if self._accepted is None:
            raise UsageError("this module accepts only the sizes it was chunked for")
        arranged = self._accepted.signature.arranged(found.args, found.kwargs)
        self._prepare(Inputs(*arranged), self._accepted)

    def _prepare(self, inputs: Inputs, accepted: Acceptance) -> None:
        kinds, sizes = sizes_of(inputs)
        if kinds != accepted.first.kinds:
            raise InputError(
                "a chunked module is prepared for inputs of other sizes, and these "
                "differ otherwise from those it was chunked for; chunk it with them"
            )
        if not self.chunks or sizes == accepted.first.sizes or sizes in self._prepared:
            return
        chunks = accepted.others.chunks(self.model, self.memplan, inputs)
        if len(self._prepared) >= MAX_SIZES:
            self._prepared.pop(next(iter(self._prepared)))
        self._prepared[sizes] = chunks

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "a chunked module is code made for this process; save its model and "
            "its plan (memplan.write_chunk_plan), and chunk with that plan"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Chunked:
        model, chunks = copy.deepcopy((self.model, self.chunks), memo)
        made = Chunked(model, chunks, self.memplan)
        memo[id(self)] = made
        made._accepted, made._warned = self._accepted, self._warned
        made._prepared = copy.deepcopy(self._prepared, memo)
        return made

    def forward(self, *args: object, **kwargs: object) -> object:
        """What the model returns for these arguments."""
        chunks = self._chunks_for(args, kwargs)
        if "" in chunks:
            return chunks[""](args, kwargs)
        with torch.no_grad(), replaced(self.model, chunks):
            return self.model(*args, **kwargs)

    def _chunks_for(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[str, Chunk]:
        """What runs in chunks on inputs of these sizes."""
        accepted = self._accepted
        if accepted is None:
            return self.chunks
        inputs = Inputs(*accepted.signature.arranged(args, kwargs))
        found = sizes_of(inputs)
        if not self.chunks or found == accepted.first:
            return self.chunks
        if found.kinds == accepted.first.kinds:
            if accepted.always:
                self._prepare(inputs, accepted)
            if found.sizes in self._prepared:
                return self._prepared[found.sizes]
        if "" not in self.chunks and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self.model).__name__} was chunked for other inputs: parts "
                "whose inputs have other shapes run unchunked, and may need more than "
                "the budget; call prepare() with inputs of these sizes",
                stacklevel=2,
            )
        return self.chunks

    def source(self) -> str:
        """The Python that runs, as one module; "" unless the whole model is chunked."""
        return self.chunks[""].source if "" in self.chunks else ""


class replaced:  # noqa: N801 - used as a function
    """While active, the submodules at some paths run in chunks.

    Calls of a submodule with other arguments than it was chunked for run as before.
    """

    def __init__(self, model: nn.Module, chunks: Mapping[str, Chunk]) -> None:
        self._model, self._chunks = model, chunks
        self._before: list[tuple[nn.Module, Callable[..., object] | None]] = []

    def __enter__(self) -> None:
        for path, chunk in self._chunks.items():
            module = self._model.get_submodule(path)
            self._before.append((module, vars(module).get("forward")))
            module.forward = _routed(module.forward, chunk)

    def __exit__(self, *_: object) -> None:
        for module, forward in reversed(self._before):
            if forward is None:
                vars(module).pop("forward", None)
            else:
                module.forward = forward
        self._before.clear()


def _routed(original: Callable[..., object], chunk: Chunk) -> Callable[..., object]:
    def forward(*args: object, **kwargs: object) -> object:
        try:
            return chunk(args, kwargs)
        except OtherArgumentsError:
            return original(*args, **kwargs)

    return forward
