"""What the second call of a unit finds, and what it leaves behind.

Where the second call would compute something else, this keeps it the same. It finds
what the first one found: the states of torch's, Python's and numpy's generators, and
of such that modules have; buffers that the first call changed, as clones (batch norm
does not read what it writes: its statistics are cloned only then); numbers, texts,
containers and objects of such, and small tensors among modules' attributes; the mode,
training or not. What it does to modules' attributes is undone. A unit with forward
hooks, which would run twice, is not computed again. What cannot be kept the same
raises: parameters, buffers, or tensors among attributes, that were changed between the
two calls, and buffers that the recording did not see changed.
"""

from __future__ import annotations

import contextlib
import random
import shlex
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memplan.applying.attributes import (
    all_attributes,
    plain_attributes,
    put_back_all,
    tensor_versions,
    torchs_own,
)
from memplan.core.recompute import Unit
from memplan.recording.activations import version_of
from memplan.recording.boundary import named_parts


@dataclass(frozen=True, eq=False)
class Bound:
    """A unit and what it is in this program, by weak references. parts: its modules;
    written: owner, name and path of each buffer that its call changes."""

    unit: Unit
    children: tuple[Any, ...]
    parts: tuple[Any, ...]
    written: tuple[tuple[Any, str], ...]

    @classmethod
    def of(cls, unit: Unit, module: Any, children: Sequence[Any]) -> Bound:
        parts = {id(each): each for child in children for _, each in named_parts(child)}
        named = dict(named_parts(module))
        written = []
        for path in unit.written:
            owner, _, name = path.rpartition(".")
            if owner in named and name in named[owner]._buffers:
                written.append((weakref.ref(named[owner]), name))
        return cls(
            unit,
            tuple(map(weakref.ref, children)),
            tuple(map(weakref.ref, parts.values())),
            tuple(written),
        )

    @property
    def leave_out(self) -> str:
        """The options that leave it out of a plan."""
        return f"--keep {shlex.quote(self.unit.name)} (keep={[self.unit.name]!r})"

    def differs(self) -> RuntimeError:
        """For a second call that computes something else."""
        return RuntimeError(
            f"memplan: {self.unit.name} computed something else when its call was made "
            "again for the backward pass; memplan verify finds all such modules; leave "
            f"it out with {self.leave_out}"
        )

    def modules(self) -> Iterator[Any]:
        """Its modules that are still there."""
        for ref in self.parts:
            if (module := ref()) is not None:
                yield module


class Again:
    """The context `Made.again`, entered for each backward pass of a graph."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._open: list[Any] = []

    def __enter__(self) -> None:
        self._open.append(self._made.again())
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._open.pop().__exit__(*error)


class Made:
    """One call of a unit: what it found, so that it finds the same the second time."""

    def __init__(self, bound: Bound, made_again: Callable[[float], object]) -> None:
        """made_again: told of the seconds of each second call."""
        self._bound, self._made_again = bound, made_again
        self._before: list[tuple[Any, str, Any]] = []
        self._attributes: list[dict[str, Any]] = []
        self._generators: tuple[Any, ...] | None = None
        self._versions: list[tuple[int, int]] = []
        self._tensors: list[int] = []  # versions, of those among attributes
        self._buffers: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Around the call itself."""
        import torch
        from torch.nn.modules.batchnorm import _NormBase

        with torch.no_grad():
            for ref, name in self._bound.written:
                owner = ref()
                value = None if owner is None else owner._buffers.get(name)
                if value is not None:
                    read = not isinstance(owner, _NormBase)
                    self._before.append((ref, name, value.clone() if read else None))
        modules = list(self._bound.modules())
        self._attributes = [plain_attributes(each) for each in modules]
        seen = _buffer_versions(modules, self._bound.written)
        generators = _generators()
        yield
        if generators != _generators():
            self._generators = generators
        self._versions = _parameter_versions(modules)
        self._tensors = tensor_versions(self._attributes)
        self._buffers = _buffer_versions(modules, self._bound.written)
        if seen != self._buffers:
            raise RuntimeError(
                f"memplan: {self._bound.unit.name} changed a buffer in its forward "
                "call that it did not change while it was recorded, and cannot be "
                "computed again with the same result; record the program again, or "
                f"leave it out with {self._bound.leave_out}"
            )

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Around the same call, when it is made again."""
        import torch

        modules = list(self._bound.modules())
        if (
            self._versions != _parameter_versions(modules)
            or self._buffers != _buffer_versions(modules, self._bound.written)
            or self._tensors != tensor_versions(self._attributes)
        ):
            raise RuntimeError(
                f"memplan: tensors of {self._bound.unit.name} were changed between "
                "its forward call and the backward pass, which needs the call again; "
                f"leave it out with {self._bound.leave_out}"
            )
        begin = time.perf_counter()
        kept: deque[tuple[Any, str, Any]] = deque()
        attributes = [all_attributes(each) for each in modules]
        generators = _generators() if self._generators is not None else None
        try:
            with torch.no_grad():
                for ref, name, value in self._before:
                    if (owner := ref()) is not None:
                        now = owner._buffers.get(name)
                        kept.append((owner, name, now))
                        owner._buffers[name] = (now if value is None else value).clone()
            for module, values in zip(modules, self._attributes, strict=True):
                put_back_all(module, values)
            if self._generators is not None:
                _set_generators(self._generators)
            yield
        finally:
            for owner, name, value in kept:
                owner._buffers[name] = value
            for module, values in zip(modules, attributes, strict=True):
                for name in vars(module).keys() - values.keys() - torchs_own():
                    del vars(module)[name]
                put_back_all(module, values)
            if generators is not None:
                _set_generators(generators)
            self._made_again(time.perf_counter() - begin)


def _generators() -> tuple[Any, ...]:
    """The states of Python's and numpy's generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


def _set_generators(states: tuple[Any, ...]) -> None:
    own, name, keys, *rest = states
    random.setstate(own)
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))


def _buffer_versions(
    modules: Sequence[Any], without: Sequence[tuple[Any, str]]
) -> list[tuple[int, int]]:
    """Identity and version of each buffer, except those named."""
    left_out = {(id(ref()), name) for ref, name in without}
    return [
        (id(value), version_of(value))
        for module in modules
        for name, value in module._buffers.items()
        if value is not None and (id(module), name) not in left_out
    ]


def _parameter_versions(modules: Sequence[Any]) -> list[tuple[int, int]]:
    """Version and storage of each parameter: `.data` may be another one."""
    return [
        (version_of(value), value.untyped_storage()._cdata)
        for module in modules
        for value in module._parameters.values()
        if value is not None
    ]
