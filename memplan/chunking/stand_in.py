"""A module that runs in chunks, in the place of the one it was made from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memplan.chunking.given import Signature
from memplan.chunking.module import Chunk, OtherArgumentsError
from memplan.chunking.trial import Inputs
from memplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from memplan.chunking.plan import ChunkPlan

MOST_SIZES = 64  # of inputs that are held ready; those before are prepared again


def sizes_of(inputs: Inputs) -> tuple[Any, Any]:
    """What inputs are but for their sizes, and their sizes: to be compared."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten((inputs.args, inputs.kwargs))
    kinds: list[Any] = [spec]
    sizes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            kinds.append((leaf.dim(), leaf.dtype, str(leaf.device)))
            sizes.append(tuple(leaf.shape))
        else:
            kinds.append(repr(leaf))
    return tuple(kinds), tuple(sizes)


def chunked_class() -> type:
    """The class of chunked modules, made when torch is there."""
    import torch

    class Chunked(torch.nn.Module):  # type: ignore[misc]
        """A module whose forward runs in chunks; for inference.

        memplan: the ChunkPlan. model: the original, whose weights it uses: when they
        change, so do its results. chunks: by its path, "" for the whole model, what
        runs in chunks; where that is not all of it, it does so in the model's place.
        """

        memplan: ChunkPlan

        def __init__(self, model: Any, chunks: dict[str, Chunk], plan: Any) -> None:
            super().__init__()
            self.model = model
            self.memplan = plan
            self.chunks = dict(chunks)
            self._sizes: dict[Any, dict[str, Chunk]] = {}
            self._kind: Any = None
            self.eval()

        def accept(self, inputs: Inputs, others: Any, always: bool) -> None:
            """Take inputs of other sizes than `inputs`, which it was chunked for.

            others: an OtherSizes. always: whether they need not be prepared before.
            """
            names = list(inputs.kwargs)
            self._form = Signature(self.model.forward, len(inputs.args), names)
            self._kind, self._first = sizes_of(inputs)
            self._others, self._always = others, always
            self._warned = False

        def prepare(self, inputs: Any) -> None:
            """Make ready for inputs of other sizes, as `memplan.chunk` takes them.

            The regions are the same; they are checked against the model on these
            inputs, and measured. That takes an export, and the memory of the model as
            it is. Raises InputError for inputs that are otherwise different, need more
            than those it was chunked for, or run other operators; BudgetError where
            the budget is not kept.
            """
            given = Inputs.of(inputs)
            self._prepare(Inputs(*self._form.arranged(given.args, given.kwargs)))

        def _prepare(self, given: Inputs) -> None:
            kind, sizes = sizes_of(given)
            if kind != self._kind:
                raise InputError(
                    "a chunked module is prepared for inputs of other sizes, and these "
                    "differ otherwise from those it was chunked for; chunk it with them"
                )
            if not self.chunks or sizes == self._first or sizes in self._sizes:
                return
            chunks = self._others.chunks(self.model, self.memplan, given)
            if len(self._sizes) >= MOST_SIZES:
                self._sizes.pop(next(iter(self._sizes)))
            self._sizes[sizes] = chunks

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise UsageError(
                "a chunked module is code made for this process; save its model and "
                "its plan (memplan.write_chunk_plan), and chunk with that plan"
            )

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            made = chunked_class()(
                copy.deepcopy(self.model, memo),
                copy.deepcopy(self.chunks, memo),
                self.memplan,
            )
            memo[id(self)] = made
            if self._kind is not None:
                made._form, made._kind, made._first = (
                    self._form,
                    self._kind,
                    self._first,
                )
                made._others, made._always = self._others, self._always
                made._warned = self._warned
                made._sizes = copy.deepcopy(self._sizes, memo)
            return made

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            chunks = self._for(args, kwargs) if self._kind else self.chunks
            if "" in chunks:
                return chunks[""](args, kwargs)
            with torch.no_grad(), replaced(self.model, chunks):
                return self.model(*args, **kwargs)

        def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """What runs in chunks on inputs of these sizes."""
            given = Inputs(*self._form.arranged(args, kwargs))
            kind, sizes = sizes_of(given)
            if not self.chunks or (kind, sizes) == (self._kind, self._first):
                return self.chunks
            if kind == self._kind:
                if self._always:
                    self._prepare(given)
                if sizes in self._sizes:
                    return self._sizes[sizes]
            if "" not in self.chunks and not self._warned:
                self._warned = True
                warnings.warn(
                    f"{type(self.model).__name__} was chunked for other inputs: parts "
                    "that are given other shapes run as they were, and may need more "
                    "than the budget; call prepare() with inputs of these sizes",
                    stacklevel=2,
                )
            return self.chunks

        def source(self) -> str:
            """The Python that runs, as one module; of the whole model only."""
            return self.chunks[""].source if "" in self.chunks else ""

    return Chunked


class replaced:  # noqa: N801 - used as a function
    """While it is entered, the submodules at some paths run in chunks.

    Calls of a submodule with other arguments than it was chunked for run as before.
    """

    def __init__(self, model: Any, chunks: dict[str, Chunk]) -> None:
        self._model, self._chunks = model, chunks
        self._before: list[tuple[Any, Any]] = []

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


def _routed(original: Callable[..., Any], chunk: Chunk) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            return chunk(args, kwargs)
        except OtherArgumentsError:
            return original(*args, **kwargs)

    return forward
