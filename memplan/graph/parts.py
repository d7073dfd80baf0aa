"""Submodules that something else answers for while their model is called.

Modules and their attributes stay as they are: all module calls pass through
`torch.nn.Module._call_impl`, and those of a thread within `replaced` are looked at
there. Other threads' calls run as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from memplan.graph.standin import Run, all_hooked
from memplan.graph.weights import has_hooks

Part = Callable[[tuple[object, ...], dict[str, Any]], Run | None]
"""What computes the results of a module's call with these arguments; None if the module
itself does."""


class _Local(threading.local):
    parts: Mapping[nn.Module, Part] = {}


@contextmanager
def replaced(model: nn.Module, parts: Mapping[str, Part]) -> Iterator[None]:
    """While active, this thread's calls of the submodules at these paths are answered
    by others. A submodule with hooks runs itself."""
    before = _local.parts
    modules = {model.get_submodule(path): part for path, part in parts.items()}
    _calls.watch()
    try:
        _local.parts = {**before, **modules}
        yield
    finally:
        _local.parts = before
        _calls.leave()


class _Calls:
    """Watches module calls while anybody wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._ours: Callable[..., object] | None = None
        self._before: Callable[..., object] | None = None

    def watch(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._ours is None:
                self._before = nn.Module._call_impl
                nn.Module._call_impl = self._ours = _calling(self._before)

    def leave(self) -> None:
        with self._lock:
            self._wanted -= 1
            # What somebody put on top of it since cannot be taken from there.
            if not self._wanted and nn.Module._call_impl is self._ours:
                nn.Module._call_impl, self._ours = self._before, None


def _calling(before: Callable[..., object]) -> Callable[..., object]:
    def _call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
        parts = _local.parts
        part = parts.get(module)
        if part is None or has_hooks(module) or all_hooked():
            return before(module, *args, **kwargs)
        # What answers may call the module.
        _local.parts = {each: of for each, of in parts.items() if each is not module}
        try:
            run = part(args, kwargs)
            return before(module, *args, **kwargs) if run is None else run()
        finally:
            _local.parts = parts

    return _call_impl


_local, _calls = _Local(), _Calls()
