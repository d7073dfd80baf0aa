"""A module that runs fused, in the place of the one it was made from."""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from memplan.fusing.engine.slabs import Slabs
from memplan.fusing.front.arguments import Signature, key_of
from memplan.fusing.front.nest import storages
from memplan.fusing.front.parts import mirrored
from memplan.fusing.front.trace import NotTraceableError
from memplan.fusing.front.weights import Watch
from memplan.fusing.gradients import refusing
from memplan.fusing.guards import unfit
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepare import agrees, prepare
from memplan.fusing.prepared import LeftAlone, Prepared

MOST_SHAPES = 8  # programs kept, for inputs of as many shapes
SELDOM = 16  # calls in a row that were left alone, until one in so many is looked at
PATIENCE = 3  # calls with a shape beyond those, until it gets a program, too
MOST_CHANGES = 8  # of modules, in so many calls for each, until no more are followed


@dataclass
class Parted:
    """A model of which some modules, at `paths`, run fused; why it is not whole.

    mirror: a copy of its tree of modules, with the same tensors. fixed: arguments that
    are no tensors.
    """

    mirror: Any
    paths: list[str]
    reason: str
    fixed: dict[str, Any]
    watch: Watch

    def stale(self) -> bool:
        """Whether the model is another one by now."""
        return not self.watch.same_modules()

    def ready(self) -> bool:
        """Its parts see to their weights themselves."""
        return True

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives on these inputs."""
        return self.mirror(**inputs, **self.fixed)


Program = Prepared | Parted | LeftAlone


@functools.cache
def fused_class() -> type:
    """The class of fused modules, made when torch is there."""
    import torch

    class Fused(torch.nn.Module):  # type: ignore[misc]
        """A module whose inference runs depth-first; for everything else it is `model`.

        model: the original, whose weights it uses; when they change, so do its results.
        Calls in training mode, under autocast, with inputs that want gradients, or that
        are traced or compiled, run `model`. What it has no attribute for is `model`'s.
        """

        def __init__(
            self, model: Any, options: FuseOptions, slabs: Slabs | None = None
        ) -> None:
            super().__init__()
            self.model = model
            self.options = options
            self.training = model.training
            self._forget(slabs)

        def _forget(self, slabs: Slabs | None = None) -> None:
            self._part = slabs is not None
            self._slabs = slabs or Slabs()
            self._programs: OrderedDict[Any, Program] = OrderedDict()
            self._seen: dict[Any, int] = {}
            self._patience = PATIENCE
            self._calls = self._changes = self._left = 0
            self._told: set[str] = set()
            self._signature = Signature()
            self._making = threading.RLock()

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name == "model" or name.startswith("__"):
                    raise
                return getattr(self.model, name)

        def __getstate__(self) -> dict[str, Any]:
            return {
                name: value for name, value in vars(self).items() if name not in OWN
            }

        def __setstate__(self, state: dict[str, Any]) -> None:
            super().__setstate__(state)
            self._forget()

        def __reduce__(self) -> Any:
            return _blank, (), self.__getstate__()

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self._passed_over() or unfit(self.model, args, kwargs):
                return self.model(*args, **kwargs)
            try:
                tensors, fixed = self._signature.bound(self.model, args, kwargs)
                key = key_of(tensors, fixed)
            except TypeError:  # the model says what is wrong with them
                return self.model(*args, **kwargs)
            except NotTraceableError as error:
                self._tell(str(error))
                return self.model(*args, **kwargs)
            program = self._program(key, tensors, fixed)
            if isinstance(program, LeftAlone):
                self._left += self._left < SELDOM
                return self.model(*args, **kwargs)
            self._left = 0
            if not program.ready():
                return self.model(*args, **kwargs)
            try:
                with torch.no_grad():
                    result = program.run(tensors)
            except Exception as error:
                result = self.model(*args, **kwargs)  # which may well raise, too
                self._give_up(key, error)
            return self._without_gradients(result, tensors)

        def _passed_over(self) -> bool:
            """Whether a look at this call would take time, most likely for nothing."""
            if self._left < SELDOM:
                return False
            self._left += 1
            return bool(self._left % SELDOM)

        def _program(
            self, key: Any, tensors: dict[str, Any], fixed: dict[str, Any]
        ) -> Program:
            self._calls += 1
            program = self._programs.get(key)
            if program is not None and not program.stale():
                return program
            with self._making:
                now = self._programs.get(key)
                if now is not None and now is not program:
                    return now  # another thread has made it meanwhile
                return self._made(key, tensors, fixed, again=program is not None)

        def _made(
            self, key: Any, tensors: dict[str, Any], fixed: dict[str, Any], again: bool
        ) -> Program:
            if again:
                self._programs.clear()  # the model is another one by now
                self._changes += 1
            self._seen[key] = self._seen.get(key, 0) + 1
            many = len(self._programs) >= MOST_SHAPES
            if many and self._seen[key] < self._patience:
                return LeftAlone("inputs of many shapes")
            if self._changes > MOST_CHANGES > self._calls // self._changes:
                self._tell("its modules change again and again")
                return LeftAlone("its modules change again and again")
            made: Program = prepare(
                self.model, tensors, fixed, self.options, self._slabs
            )
            if isinstance(made, LeftAlone) and made.parts and not self._part:
                made = self._parted(made, tensors, fixed)
            if isinstance(made, LeftAlone):
                self._tell(made.reason)
            self._keep(key, made)
            return made

        def _keep(self, key: Any, made: Program) -> None:
            self._programs[key] = made
            while len(self._programs) > MOST_SHAPES:
                self._programs.pop(next(iter(self._programs)))
                self._patience *= 2  # or many shapes in turn would never be done
                self._seen.clear()
            programs = self._programs.values()
            engines = [each.engine for each in programs if isinstance(each, Prepared)]
            if not any(isinstance(each, Parted) for each in programs):
                self._slabs.trim(max((each.bytes for each in engines), default=0))

        def _parted(
            self, whole: LeftAlone, tensors: dict[str, Any], fixed: dict[str, Any]
        ) -> Program:
            """The model with its parts fused, if it then gives what it gives."""
            slabs = self._slabs
            mirror, paths = mirrored(
                self.model, lambda part: part_class(part)(part, self.options, slabs)
            )
            if not paths:
                return whole
            made = Parted(mirror, paths, whole.reason, fixed, Watch(self.model, ()))
            if agrees(self.model, made.run, tensors, fixed, self.options):
                return made
            return whole

        def _tell(self, reason: str) -> None:
            """Say once why the model runs as it was; of parts, the whole has said."""
            if reason not in self._told and not self._part:
                self._told.add(reason)
                warnings.warn(
                    f"memplan.fuse: the model runs as it was: {reason}",
                    stacklevel=_frames_to_caller(),
                )

        def _give_up(self, key: Any, error: Exception) -> None:
            """The model has run where a program failed: it does so from now on."""
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._programs[key] = LeftAlone(reason, watch=Watch(self.model, ()))
            self._tell(reason)

        def _without_gradients(self, result: Any, tensors: dict[str, Any]) -> Any:
            """Results that raise where a gradient is asked of them, if the model's
            would have one."""
            if not torch.is_grad_enabled():
                return result
            anchor = next((p for p in self.model.parameters() if p.requires_grad), None)
            if anchor is None:
                return result
            return refusing(result, anchor, storages(tensors.values()))

        def programs(self) -> list[Program]:
            """What was made for the shapes seen last."""
            return list(self._programs.values())

    return Fused


OWN = {
    *("_part", "_slabs", "_programs", "_seen", "_patience", "_calls", "_changes"),
    *("_told", "_signature", "_making", "_left"),
}


@functools.cache
def _sequence_class() -> type:
    fused: Any = fused_class()

    class FusedSequence(fused):  # type: ignore[misc]
        """A fused part that can be taken apart as the Sequential it stands for."""

        def __len__(self) -> int:
            return len(self.model)

        def __getitem__(self, index: Any) -> Any:
            return self.model[index]

        def __iter__(self) -> Any:
            return iter(self.model)

    return FusedSequence


def part_class(model: Any) -> type:
    """The class of what stands in a module's place inside its model."""
    return _sequence_class() if hasattr(type(model), "__getitem__") else fused_class()


def _frames_to_caller() -> int:
    """How many frames `_tell` is away from the program's line that called the model:
    the first that is neither torch's nor of this file."""
    torch = os.path.dirname(sys.modules["torch"].__file__ or "")
    own = (f"{torch}{os.sep}", __file__)
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, count = frame.f_back, count + 1
    return count


def _blank() -> Any:
    """A fused module to be filled from where it was saved."""
    cls: Any = fused_class()
    return cls.__new__(cls)
