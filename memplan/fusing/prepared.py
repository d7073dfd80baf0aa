"""A model compiled for inputs of given shapes, or why it runs unchanged."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from memplan.fusing.engine.engine import Engine
from memplan.fusing.layers import Network
from memplan.graph.weights import Watch

MOST_REPACKS = (
    3  # calls in a row with other weights, until they are not packed any more
)

_building = threading.RLock()


def _after_fork() -> None:
    """The thread that held the lock does not exist in a child."""
    global _building  # noqa: PLW0603
    _building = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def building() -> threading.RLock:
    """The lock under which models are compiled, one at a time."""
    return _building


@dataclass
class Fallback:
    """Why a model runs unchanged.

    network: its layers, if known. parts: whether parts of it may be fused. watch: the
    model's state then; None to never check again. every: calls between checks.
    """

    reason: str
    network: Network | None = None
    parts: bool = False
    watch: Watch | None = None
    every: int = 4
    _calls: int = 0

    def stale(self) -> bool:
        """Whether a check is due and finds that the model has changed."""
        self._calls += 1
        if self.watch is None or self._calls % self.every:
            return False
        return not self.watch.same_modules()


@dataclass
class Prepared:
    """A network compiled for inputs of given shapes.

    watch: the model's state when its weights were packed. finish: converts the engine's
    outputs to the model's.
    """

    network: Network
    engine: Engine
    watch: Watch
    finish: Callable[[object], object]
    _changes: int = 0  # of weights, from call to call
    _packed: bool = True
    _same: bool = True  # as the weights were

    def stale(self) -> bool:
        """Whether the model has changed in more than its weights' values."""
        if not (self.watch.same_modules() and self.watch.same_containers()):
            return True
        if self.watch.other_number():
            return True
        self._same = self.watch.same_weights()
        return not self._same and not self.watch.same_kinds()

    def ready(self) -> bool:
        """Whether the engine has the weights that `stale` saw: packs them if they
        changed, but not while they change at every call."""
        same = self._same
        if same and self._packed:
            self._changes = 0
            return True
        with building():
            watch = self.watch if same else self.watch.again()
            self._changes += not same
            self._packed = self._packed and same
            if same or self._changes <= MOST_REPACKS:
                with inference():
                    self.engine.pack()
                self._packed = True
            self.watch = watch
        return self._packed

    def run(self, tensors: list[torch.Tensor]) -> object:
        """The model's results for the tensors among its inputs, in order."""
        inputs = dict(zip(self.network.inputs, tensors, strict=True))
        return self.finish(self.engine.run(inputs))


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Tensors created here have version counters and no gradients."""
    with torch.inference_mode(False), torch.no_grad():
        yield
