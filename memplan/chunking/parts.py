"""A model exported whole, or else the submodules of it that can be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from memplan.chunking.canonical import searchable
from memplan.errors import InputError
from memplan.graph.call import Form, Inputs, Signature
from memplan.graph.check import NOTES, Attributes, Snapshot
from memplan.graph.export import Exported, export, first_line
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.measure import MEMORY, Run, events_of
from memplan.graph.program import Program
from memplan.graph.weights import has_hooks


@dataclass(frozen=True)
class Target:
    """An exported module.

    path: of the module in the model, "" for the model itself. form: of the inputs that
    it was exported with. outside: bytes of activations that are live outside the module
    while it runs.
    """

    path: str
    module: nn.Module
    exported: Exported
    program: Program
    form: Form
    outside: int = 0


@dataclass(frozen=True)
class Exports:
    """Modules that can be chunked; left_alone: path of each other module -> reason.

    changed: modules that change their own attributes as they run.
    """

    targets: list[Target]
    left_alone: dict[str, str]
    inference: Inference = field(default_factory=Inference)
    changed: set[nn.Module] = field(default_factory=set)


def export_parts(model: nn.Module, inputs: Inputs) -> Exports:
    """Export `model`, or each exportable submodule if the whole cannot be exported.

    A submodule that is called more than once runs in chunks if its arguments are like
    those of the first call. Raises InputError if the model fails on the inputs.
    """
    attributes = Attributes(model)
    _run(model, inputs)
    exports = Exports([], {}, changed=set(attributes.changed()))
    attributes.restore()
    reason = _exported(exports, "", model, inputs)
    if reason is None:
        return exports
    exports.left_alone[""] = reason
    _descend(exports, model, "", first_calls(model, inputs))
    levels = levels_at(model, inputs, [target.path for target in exports.targets])
    exports.targets[:] = [
        replace(each, outside=levels[each.path]) for each in exports.targets
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
    inside = list(module.modules())
    if any(map(has_hooks, inside[1 if path else 0 :])):
        return "its modules have hooks"  # which would run once, while it is exported
    if exports.changed.intersection(inside):
        return NOTES
    attributes = Attributes(module)
    try:
        exported = export(module, inputs.args, inputs.kwargs)
        program = searchable(lower(exported, exports.inference), exports.inference)
    except InputError as error:
        return str(error)
    finally:
        attributes.restore()
    form = Form.of(inputs)
    exports.targets.append(Target(path, module, exported, program, form))
    return None


def first_calls(model: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """The arguments of each submodule's first call.

    Raises InputError if the model fails on the inputs.
    """
    calls: dict[str, Inputs] = {}

    def note(path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if path not in calls:
            module = model.get_submodule(path)
            calls[path] = Signature().arranged(module, args, kwargs)

    paths = [
        path
        for path, module in model.named_modules()
        if path and not isinstance(module, torch.jit.ScriptModule)  # takes no hooks
    ]
    _run(model, inputs, paths, note)
    return calls


MARK = "memplan: "


def levels_at(model: nn.Module, inputs: Inputs, paths: list[str]) -> dict[str, int]:
    """The most bytes of activations that are live when each submodule is called.

    0 on devices other than the CPU, and for submodules that are never called.
    """

    def mark(path: str, *_: object) -> None:
        with torch.profiler.record_function(MARK + path):
            pass

    levels = dict.fromkeys(paths, 0)
    now = 0
    for event in _run(model, inputs, paths, mark, events_of):
        name = event.name()
        if name == MEMORY:
            now += event.nbytes()
        elif name.startswith(MARK):
            path = name.removeprefix(MARK)
            levels[path] = max(levels[path], now)
    return levels


def _run(
    model: nn.Module,
    inputs: Inputs,
    paths: Sequence[str] = (),
    note: Callable[..., None] = lambda *_: None,
    within: Callable[[Run], Any] = lambda run: run(),
) -> Any:
    """Run the model; `note` gets path and arguments of each call of these submodules.

    within: is given the run, and its result returned. What the model writes to inputs
    and buffers is put back. Raises InputError if it fails.
    """
    snapshot = Snapshot([*inputs.leaves(), *model.buffers()])

    def hook(path: str, _: object, *call: object) -> None:
        note(path, *call)

    handles = [
        model.get_submodule(path).register_forward_pre_hook(
            functools.partial(hook, path), with_kwargs=True
        )
        for path in paths
    ]
    try:
        with torch.no_grad():
            return within(lambda: inputs.run(model))
    except Exception as error:  # the user's code may raise anything
        raise InputError(
            f"the model fails on these inputs: {first_line(error)}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        snapshot.restore()
