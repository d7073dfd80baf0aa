"""A model exported whole, or else the submodules of it that can be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from memplan.chunking.canonical import searchable
from memplan.chunking.inputs import Inputs
from memplan.chunking.measure import levels_at
from memplan.errors import InputError
from memplan.graph.export import Exported, export, first_line
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.program import Program


@dataclass(frozen=True)
class Target:
    """An exported module.

    path: of the module in the model, "" for the model itself. outside: bytes of
    activations that are live outside the module while it runs.
    """

    path: str
    module: nn.Module
    exported: Exported
    program: Program
    outside: int = 0


@dataclass(frozen=True)
class Exports:
    """Modules that can be chunked; left_alone: path of each other module -> reason."""

    targets: list[Target]
    left_alone: dict[str, str]
    inference: Inference = field(default_factory=Inference)


def export_parts(model: nn.Module, inputs: Inputs) -> Exports:
    """Export `model`, or each exportable submodule if the whole cannot be exported.

    A submodule that is called more than once runs in chunks if its arguments are like
    those of the first call. Raises InputError if the model fails on the inputs.
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
    exports: Exports, module: nn.Module, path: str, calls: dict[str, Inputs]
) -> None:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if where in calls:
            reason = _exported(exports, where, child, calls[where])
            if reason is None:
                continue
            exports.left_alone[where] = reason
        _descend(exports, child, where, calls)


def _exported(
    exports: Exports, path: str, module: nn.Module, inputs: Inputs
) -> str | None:
    """Add a module's export; return the reason if it cannot be exported."""
    try:
        exported = export(module, inputs.args, inputs.kwargs)
        program = searchable(lower(exported, exports.inference), exports.inference)
    except InputError as error:
        return str(error)
    exports.targets.append(Target(path, module, exported, program))
    return None


def first_calls(model: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """The arguments of each submodule's first call.

    Raises InputError if the model fails on the inputs.
    """
    calls: dict[str, Inputs] = {}
    snapshot = inputs.snapshot(model)
    with _hooked(model, calls), torch.no_grad():
        try:
            inputs.run(model)
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"the model fails on these inputs: {first_line(error)}"
            ) from error
    snapshot.restore()
    return calls


@contextlib.contextmanager
def _hooked(model: nn.Module, calls: dict[str, Inputs]) -> Iterator[None]:
    def note(path: str) -> Callable[..., None]:
        def hook(
            _: object, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> None:
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
