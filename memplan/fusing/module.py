"""A module that runs fused, in the place of the one it was made from."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from memplan.errors import UsageError
from memplan.fusing.front.parts import mirrored
from memplan.fusing.front.trace import NotTraceableError, bound, has_hooks
from memplan.fusing.front.weights import Watch
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepare import LeftAlone, Prepared, prepare

MOST_SHAPES = 8  # programs kept, for inputs of as many shapes
PATIENCE = 3  # calls with a shape beyond those, until it gets a program, too

GRADIENTS = (
    "memplan.fuse runs a model's inference: its results have no gradients. Run under "
    "torch.no_grad(), or train the model that was fused, which is at .model"
)


@dataclass
class Parted:
    """A model of which some modules, at `paths`, run fused; why it is not whole.

    mirror: a copy of its tree of modules, with the same tensors.
    """

    mirror: Any
    paths: list[str]
    reason: str
    fixed: dict[str, Any]
    watch: Watch

    def stale(self) -> bool:
        """Whether the model is another one by now."""
        return not self.watch.same_modules()

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives on these inputs."""
        return self.mirror(**inputs, **self.fixed)


Program = Prepared | Parted | LeftAlone


def fused_class() -> type:
    """The class of fused modules, made when torch is there."""
    import torch

    class NoGradient(torch.autograd.Function):  # type: ignore[misc]
        """Its result looks differentiable, and says why it is not."""

        @staticmethod
        def forward(ctx: Any, value: Any, anchor: Any) -> Any:
            return value.view_as(value)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise UsageError(GRADIENTS)

    class Fused(torch.nn.Module):  # type: ignore[misc]
        """A module whose inference runs depth-first; for everything else it is `model`.

        model: the original, whose weights it uses; when they change, so do its results.
        Calls in training mode, under autocast, with inputs that want gradients, or that
        are traced or compiled, run `model`.
        """

        def __init__(self, model: Any, options: FuseOptions) -> None:
            super().__init__()
            self.model = model
            self.options = options
            self.train(model.training)
            self._forget()

        def _forget(self) -> None:
            self._programs: OrderedDict[Any, Program] = OrderedDict()
            self._seen: dict[Any, int] = {}
            self._told: set[str] = set()

        def __reduce__(self) -> Any:
            return _again, (self.model, self.options, self.training)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            made = fused_class()(copy.deepcopy(self.model, memo), self.options)
            memo[id(self)] = made
            return made

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if unfit(self.model, args, kwargs):
                return self.model(*args, **kwargs)
            try:
                tensors, fixed = bound(self.model, args, kwargs)
                key = _key(tensors, fixed)
            except (NotTraceableError, TypeError) as error:
                self._tell(str(error))
                return self.model(*args, **kwargs)
            program = self._program(key, tensors, fixed)
            if isinstance(program, LeftAlone):
                return self.model(*args, **kwargs)
            with torch.no_grad():
                result = program.run(tensors)
            return self._without_gradients(result)

        def _program(
            self, key: Any, tensors: dict[str, Any], fixed: dict[str, Any]
        ) -> Program:
            program = self._programs.get(key)
            if program is not None and not program.stale():
                self._programs.move_to_end(key)
                return program
            if program is not None:
                self._programs.clear()  # the model is another one by now
            self._seen[key] = self._seen.get(key, 0) + 1
            if len(self._programs) >= MOST_SHAPES and self._seen[key] < PATIENCE:
                return LeftAlone("inputs of many shapes", None)
            made: Program = prepare(self.model, tensors, fixed, self.options)
            if isinstance(made, LeftAlone) and made.parts:
                made = self._parted(made, fixed)
            if isinstance(made, LeftAlone):
                self._tell(made.reason)
            self._programs[key] = made
            while len(self._programs) > MOST_SHAPES:
                self._programs.popitem(last=False)
            return made

        def _parted(self, whole: LeftAlone, fixed: dict[str, Any]) -> Program:
            mirror, paths = mirrored(
                self.model, lambda part: fused_class()(part, self.options)
            )
            if not paths:
                return whole
            return Parted(mirror, paths, whole.reason, fixed, Watch(self.model, ()))

        def _tell(self, reason: str) -> None:
            """Say once why the model runs as it was."""
            if reason not in self._told:
                self._told.add(reason)
                warnings.warn(
                    f"memplan.fuse: the model runs as it was: {reason}",
                    stacklevel=4,
                )

        def _without_gradients(self, result: Any) -> Any:
            """Results that raise where a gradient is asked of them, if the model's
            would have one."""
            if not torch.is_grad_enabled():
                return result
            anchor = next((p for p in self.model.parameters() if p.requires_grad), None)
            if anchor is None:
                return result
            from torch.utils._pytree import tree_map_only

            return tree_map_only(
                torch.Tensor, lambda each: NoGradient.apply(each, anchor), result
            )

        def programs(self) -> list[Program]:
            """What was made for the shapes seen last, the latest at the end."""
            return list(self._programs.values())

    return Fused


def _again(model: Any, options: FuseOptions, training: bool) -> Any:
    """A fused module read from where it was saved: it is made ready anew."""
    return fused_class()(model, options).train(training)


def unfit(  # noqa: PLR0911 - a reason a line
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Why a call is not one of plain inference; "" where it is."""
    import torch
    from torch.utils._pytree import tree_leaves

    if model.training:
        return "it is in training mode"
    if has_hooks(model):
        return "it has hooks"
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "it is being traced"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "it runs under autocast"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "there are hooks on all modules"
    grad = torch.is_grad_enabled()
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                return f"an input is a {type(leaf).__name__}"
            if grad and leaf.requires_grad:
                return "an input wants a gradient"
    return ""


def _key(tensors: dict[str, Any], fixed: dict[str, Any]) -> Any:
    """What a program is made for. Raises TypeError for arguments without a hash."""
    import torch

    key = (
        tuple(
            (name, tuple(each.shape), each.dtype, str(each.device))
            for name, each in tensors.items()
        ),
        tuple(fixed.items()),
        torch.get_num_threads(),
    )
    hash(key)
    return key
