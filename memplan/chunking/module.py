"""Modules that run in chunks, in the place of those they were made from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from memplan.chunking.canonical import rejoined
from memplan.chunking.code import compiled, source
from memplan.chunking.plan import ChunkPlan
from memplan.errors import InputError, UsageError
from memplan.graph.call import Form, Inputs, Signature, order_of
from memplan.graph.capture import Target, capture
from memplan.graph.export import first_line
from memplan.graph.nest import Kind
from memplan.graph.parts import replaced
from memplan.graph.program import Program
from memplan.graph.standin import Run, StandIn, all_hooked
from memplan.graph.weights import UNFILLED, Watch, Weights, has_hooks

if TYPE_CHECKING:
    from memplan.chunking.shapes import OtherSizes

# Input sizes that are kept, with loops and without; the oldest is dropped first.
MAX_SIZES, MAX_FITTING = 64, 4096


class Chunk:
    """One exported module and the program that replaces it, for inputs of one form."""

    def __init__(self, target: Target, program: Program, name: str) -> None:
        """target: the module, and its program without loops; program: with loops."""
        self.target, self.program = target, rejoined(program)
        self.source = source(self.program, f"{name}, in chunks")
        self._run = compiled(self.source, name)
        self._weights = Weights(target.module, target.constants)
        self._form = target.form
        self._signature = Signature()
        self._watch: Watch | None = None
        self._unlike = ""  # why it does not fit its model

    def settle(self) -> None:
        """Take the module's attributes as they are for those that it was chunked
        with."""
        self._watch = Watch(self._weights.model, (), caches=self.target.caches)

    def changed(self) -> str:
        """What changed in the module, as it is outside a call; "" if nothing did."""
        watch = self._watch
        same = watch is None or watch.same()
        if watch is not None and watch.is_cold():
            return UNFILLED
        return self.outdated() or (
            "" if same else "its modules or attributes have changed"
        )

    @property
    def original(self) -> Program:
        """The module's program without loops."""
        return self.target.program

    def __deepcopy__(self, memo: dict[int, object]) -> Chunk:
        """A copy that uses the copied model's weights."""
        other = copy.copy(self)
        model = copy.deepcopy(self._weights.model, memo)
        other._weights = Weights(model, self._weights.constants)
        other.target = replace(self.target, caches=None)  # those of this model
        if self._watch is not None and self._watch.is_cold():
            other._unlike = "it is a copy of a model that had not filled its caches"
        other.settle()
        return other

    def __call__(self, inputs: Inputs) -> object:
        """The results for inputs of this form."""
        tensors = inputs.tensors()
        device = self._form.autocast[0] if self._form.autocast else "cpu"
        # The program contains the casts that autocast makes.
        with torch.no_grad(), torch.autocast(device, enabled=False):
            result = self._run(tensors, self._weights)
        return self.target.rebuild(list(result))

    def answer(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Run | None:
        """What computes the results of a call of the module, if its inputs are of this
        form, and its weights as they were."""
        inputs = self._signature.arranged(self._weights.model, args, kwargs)
        fits = Form.of(inputs) == self._form and not self.outdated()
        return partial(self, inputs) if fits else None

    def outdated(self) -> str:
        """What changed in the module since its export, hooks of its parts included; ""
        if nothing did."""
        if self._unlike:
            return self._unlike
        if any(map(has_hooks, islice(self._weights.model.modules(), 1, None))):
            return "its modules have hooks"
        if number := self.target.numbers.changed(self._weights):
            return number
        for name, place in self.program.constants.items():
            meta, weight = self.program.metas[name], self._weights.get(place)
            if weight is None:
                return f"it was chunked with {place}, which is gone"
            now = Kind.of(weight)
            before = Kind(meta.shape, meta.dtype, meta.device)
            if now != before:
                return f"it was chunked with {place} of {before}, which is {now} now"
        return ""


class Chunked(StandIn):
    """A module whose forward runs in chunks; for inference.

    memplan: the ChunkPlan. chunks: what runs in chunks, by path in the model. The path
    "" is the whole model; otherwise the model itself runs, with the parts at these
    paths replaced.

    For inputs or weights that differ from those it was chunked and prepared for, the
    model runs, and a warning gives the reason.
    """

    verb = "chunk"
    _own = StandIn._own | {
        *("memplan", "chunks", "_first", "_last", "_prepared", "_others", "_always"),
    }

    def __init__(
        self,
        model: nn.Module,
        chunks: Mapping[str, Chunk],
        plan: ChunkPlan,
        inputs: Inputs,
    ) -> None:
        super().__init__(model)
        self.memplan = plan
        self.chunks = dict(chunks)
        self._first, self._last = Form.of(inputs), _channels_last(inputs)
        self._prepared: dict[Form, dict[str, Chunk]] = {self._first: self.chunks}
        self._others: OtherSizes | None = None
        self._always = False

    def accept(self, others: OtherSizes, always: bool) -> None:
        """Accept inputs of other sizes. others: prepares for them; always: whether at
        their first call, too, without a call of `prepare`."""
        self._others, self._always = others, always
        for chunk in self.chunks.values():
            chunk.settle()

    def prepare(self, inputs: object) -> None:
        """Prepare for inputs of other sizes; `memplan.chunk` says which forms it takes.

        The regions stay the same; they are checked against the model on these inputs
        and measured. This takes an export, which may serve for later sizes, too, and as
        much memory as the model itself.
        Raises InputError for inputs that differ in more than sizes, need more memory
        than the first inputs, or run other operators; BudgetError if the budget is not
        kept.
        """
        given = Inputs.of(inputs)
        with self._lock:
            inputs = self._signature.arranged(self.model, given.args, given.kwargs)
            self._prepare(inputs)

    def _prepare(self, inputs: Inputs) -> None:
        form = Form.of(inputs)
        if not form.alike(self._first):
            raise InputError(
                "a chunked module is prepared for inputs of other sizes, and these "
                "differ otherwise from those it was chunked for; chunk it with them"
            )
        if self.chunks and not self._prepared.get(form):
            assert self._others is not None
            smaller = form.within(self._first)
            made = self._others.chunks(self.model, self.memplan, inputs, smaller)
            self._keep(form, made)

    def _keep(self, form: Form, chunks: dict[str, Chunk]) -> None:
        looped = bool(chunks)
        for chunk in chunks.values():
            chunk.settle()
        alike = [each for each, made in self._prepared.items() if bool(made) == looped]
        if len(alike) > (MAX_SIZES if looped else MAX_FITTING):
            self._prepared.pop(alike[1])  # not the first, that it was chunked for
        self._prepared[form] = chunks

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "a chunked module is code made for this process; save its model and "
            "its plan (memplan.write_chunk_plan), and chunk with that plan"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Chunked:
        other: Chunked = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def run(self, *args: Any, **kwargs: Any) -> object:
        """The results in chunks for inputs as it was chunked for, or an exception."""
        inputs = self._signature.arranged(self.model, args, kwargs)
        return self._run(self.chunks, inputs)

    def _run(self, chunks: dict[str, Chunk], inputs: Inputs) -> object:
        if "" in chunks:
            return chunks[""](inputs)
        parts = {path: chunk.answer for path, chunk in chunks.items()}
        with replaced(self.model, parts):
            return inputs.run(self.model)

    def target(self, inputs: Inputs) -> Target:
        if not self.chunks or self.model.training:
            return capture(self.model, inputs, quick=True)
        chunks = self._chunks_for(Form.of(inputs), inputs)
        if not chunks:
            return capture(self.model, inputs, quick=True)
        chunk = chunks.get("")
        if chunk is None:
            raise InputError("parts of it run by memplan.chunk already")
        if reason := chunk.outdated():
            raise InputError(f"{reason}; chunk it again")
        return replace(chunk.target, module=self.model, program=chunk.program)

    def budget(self) -> int | None:
        return self.memplan.budget_bytes if self.chunks else None

    def unsupported(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        reason = super().unsupported(args, kwargs)
        if "" not in self.chunks and not self.model.training:
            reason = ""  # the model itself runs, and its hooks
        reason = reason or all_hooked()
        leaves = filter(_is_tensor, tree_leaves((args, kwargs)))
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
            return reason or "an input requires a gradient"
        return reason

    def _ready(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, Run] | None:
        if not self.chunks:
            return None
        if reason := self.unsupported(args, kwargs):
            self._warn(reason)
            return None
        inputs = self._signature.arranged(self.model, args, kwargs)
        form = Form.of(inputs)
        chunks = self._chunks_for(form, inputs)
        for chunk in chunks.values():
            if reason := chunk.changed():
                advice = "" if reason == UNFILLED else "; chunk it again"
                self._warn(f"{reason}{advice}")
                chunks = {}
                break
        return (form, partial(self._run, chunks, inputs)) if chunks else None

    def _chunks_for(self, form: Form, inputs: Inputs) -> dict[str, Chunk]:
        """What runs in chunks on inputs of this form."""
        alike = form.alike(self._first)
        if alike and _channels_last(inputs) != self._last:
            self._warn("it was chunked for inputs in another memory format")
            return {}
        if alike and self._always and form not in self._prepared:
            with self._lock:
                try:
                    self._prepare(inputs)
                except Exception as error:  # the model may raise anything
                    self._keep(form, {})
                    self._warn(str(error))
        if form in self._prepared:
            return self._prepared[form]
        advice = "call prepare() with such inputs" if alike else "chunk it with them"
        reason = f"it was chunked {self._first.difference(form)}; {advice}"
        if "" in self.chunks:
            self._warn(reason)
            return {}
        self._warn(reason, "parts of the model run")
        return self.chunks

    def _give_up(self, key: Any, error: Exception) -> None:
        self._prepared[key] = {}
        self._warn(first_line(error))

    def source(self) -> str:
        """The Python that runs, as one module; "" unless the whole model is chunked."""
        return self.chunks[""].source if "" in self.chunks else ""


def _channels_last(inputs: Inputs) -> list[bool]:
    """Which tensors lie with their channels last; results then do, too."""
    return [order_of(x) == "last" for x in inputs.leaves() if isinstance(x, Tensor)]


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
