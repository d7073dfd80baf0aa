"""A model that cannot be taken whole, with those of its modules that can."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from memplan.fusing.front.modules import MODULES
from memplan.fusing.front.trace import NotTraceableError, trace

FEWEST = 2  # layers that are worth a part


def mirrored(model: Any, fused: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    """A copy of `model`'s tree of modules in which the largest that can be traced are
    what `fused` makes of them, and their paths; the tensors are the model's own.

    A module without such parts is in the copy as it is.
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
        if worthwhile(child):
            changed[name] = _with_hooks(fused(_bare(child)), child)
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


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def _bare(module: Any) -> Any:
    """The module without its own hooks: what stands in its place has them."""
    other = copy.copy(module)
    for name in _HOOKS:
        setattr(other, name, OrderedDict())
    return other


def _with_hooks(part: Any, module: Any) -> Any:
    for name in _HOOKS:
        setattr(part, name, getattr(module, name))
    return part
