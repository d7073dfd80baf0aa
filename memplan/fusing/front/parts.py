"""A model that cannot be taken whole, with those of its modules that can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from memplan.fusing.front.modules import MODULES
from memplan.fusing.front.trace import NotTraceableError, has_hooks, trace

FEWEST = 2  # layers that are worth a part


def mirrored(model: Any, fused: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    """A copy of `model`'s tree of modules in which the largest that can be traced are
    what `fused` makes of them, and their paths; the tensors are the model's own.

    A module without such parts is in the copy as it is, and so is one with hooks.
    """
    paths: list[str] = []
    return _descend(model, fused, "", paths), paths


def _descend(
    module: Any, fused: Callable[[Any], Any], path: str, paths: list[str]
) -> Any:
    changed: dict[str, Any] = {}
    for name, child in module._modules.items():
        if child is None:
            continue
        here = f"{path}.{name}" if path else name
        if has_hooks(child):
            continue  # they are given the module itself
        if worthwhile(child):
            changed[name] = fused(child)
            paths.append(here)
        else:
            other = _descend(child, fused, here, paths)
            if other is not child:
                changed[name] = other
    if not changed:
        return module
    mirror = copy.copy(module)
    mirror._modules = type(module._modules)({**module._modules, **changed})
    return mirror


def worthwhile(module: Any) -> bool:
    """Whether a module has several layers that are known, and can be traced."""
    known = [each for each in module.modules() if type(each).__name__ in MODULES]
    if len(known) < FEWEST:
        return False
    try:
        trace(module, {})
    except NotTraceableError:
        return False
    return True
