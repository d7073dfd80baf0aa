"""A model exported whole, or else the submodules of it that can be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from memplan.chunking.canonical import searchable
from memplan.chunking.measure import levels_at
from memplan.chunking.trial import Inputs
from memplan.errors import InputError
from memplan.graph.export import Exported, export
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.program import Program


@dataclass(frozen=True)
class Target:
    """An exported module: its path in the model, and bytes of activations that are
    live outside of it while it runs."""

    path: str
    module: Any
    exported: Exported
    program: Program
    outside: int = 0


@dataclass(frozen=True)
class Exports:
    """Modules that can be chunked, and why others are left alone."""

    targets: list[Target]
    left_alone: dict[str, str]
    inference: Inference = field(default_factory=Inference)


def export_parts(model: Any, inputs: Inputs) -> Exports:
    """Export `model`; where that fails its children, and theirs, each on its own.

    Submodules that are called more than once run in chunks when called with arguments
    like the first ones.
    """
    exports = Exports([], {})
    reason = _exported(exports, "", model, inputs)
    if reason is None:
        return exports
    exports.left_alone[""] = reason
    calls = first_calls(model, inputs)
    _descend(exports, model, "", calls)
    levels = levels_at(model, inputs, [target.path for target in exports.targets])
    exports.targets[:] = [
        Target(each.path, each.module, each.exported, each.program, levels[each.path])
        for each in exports.targets
    ]
    return exports


def _descend(
    exports: Exports, module: Any, path: str, calls: dict[str, Inputs]
) -> None:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if where in calls:
            reason = _exported(exports, where, child, calls[where])
            if reason is None:
                continue
            exports.left_alone[where] = reason
        _descend(exports, child, where, calls)


def _exported(exports: Exports, path: str, module: Any, inputs: Inputs) -> str | None:
    """Add a module's export; if that cannot be, why."""
    try:
        exported = export(module, inputs.args, inputs.kwargs)
        program = searchable(lower(exported, exports.inference), exports.inference)
    except InputError as error:
        return str(error)
    exports.targets.append(Target(path, module, exported, program))
    return None


def first_calls(model: Any, inputs: Inputs) -> dict[str, Inputs]:
    """The arguments with which each submodule is first called."""
    import torch

    calls: dict[str, Inputs] = {}
    kept = inputs.kept(model)
    with _hooked(model, calls), torch.no_grad():
        inputs.run(model)
    kept.restore()
    return calls


@contextlib.contextmanager
def _hooked(model: Any, calls: dict[str, Inputs]) -> Iterator[None]:
    import torch

    def note(path: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(path, Inputs(args, kwargs))

        return hook

    handles = [
        module.register_forward_pre_hook(note(path), with_kwargs=True)
        for path, module in model.named_modules()
        if path and not isinstance(module, torch.jit.ScriptModule)  # takes no hooks
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
