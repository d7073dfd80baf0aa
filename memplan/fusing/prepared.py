"""What was made of a model for inputs of given shapes: a program, or a reason."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from memplan.fusing.engine.build import Engine
from memplan.fusing.front.weights import Watch
from memplan.fusing.layers import Network
from memplan.fusing.nodes import Node

RESTLESS = 3  # calls in a row with other weights, until they are not packed any more

_building = threading.RLock()


def _after_fork() -> None:
    """Who held the lock is not there in a child."""
    global _building  # noqa: PLW0603
    _building = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def building() -> threading.RLock:
    """The lock under which models are made ready, one at a time."""
    return _building


@dataclass
class LeftAlone:
    """Why a model runs as it was; its layers, as far as they are known; whether parts
    of it may be fused. watch: what it was then; None where it is not asked again.
    every: how many calls may pass until it is looked at again."""

    reason: str
    network: Network | None = None
    parts: bool = False
    watch: Watch | None = None
    every: int = 4
    _calls: int = 0

    def stale(self) -> bool:
        """Whether it is to be asked again: the model is another one by now."""
        self._calls += 1
        if self.watch is None or self._calls % self.every:
            return False
        return not self.watch.same_modules()


@dataclass
class Prepared:
    """A network that runs fused, on inputs of the shapes it was made for.

    nodes: what runs. watch: what the model was when its weights were packed. finish:
    makes of the engine's outputs the model's. error: the largest relative difference
    to the model's own results. seconds: of making it. gain: the model's time over this
    one's, when it was made; None if that was not measured.
    """

    network: Network
    engine: Engine
    watch: Watch
    finish: Callable[[Any], Any]
    error: float
    seconds: float
    gain: float | None = None
    _changes: int = 0  # of weights, from call to call
    _packed: bool = True
    _same: bool = True  # as the weights were

    @property
    def nodes(self) -> list[Node]:
        return self.engine.nodes

    def stale(self) -> bool:
        """Whether the model is another one by now."""
        if not self.watch.same_modules():
            return True
        self._same = self.watch.same_weights()
        return not self._same and not self.watch.same_kinds()

    def ready(self) -> bool:
        """Whether the engine has the weights that the model had when `stale` was asked,
        which are packed anew where they changed; but not while they do at every call.
        """
        same = self._same
        if same and self._packed:
            self._changes = 0
            return True
        with building():
            watch = self.watch if same else self.watch.again()
            self._changes += not same
            self._packed = self._packed and same
            if same or self._changes <= RESTLESS:
                with inference():
                    self.engine.pack()
                self._packed = True
            self.watch = watch
        return self._packed

    def run(self, inputs: dict[str, Any]) -> Any:
        """What the model gives on these inputs."""
        return self.finish(self.engine.run(inputs))


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Tensors made here have versions, and no gradients."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        yield
