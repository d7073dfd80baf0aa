"""A model captured as a Program: whole, or else the submodules of it that can be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from memplan.errors import InputError
from memplan.graph.caches import Caches, Changes, changes_of
from memplan.graph.call import Form, Inputs, Signature
from memplan.graph.check import NOTES, SideEffectsError, Snapshot, without_effects
from memplan.graph.export import (
    EXPORT_SECONDS,
    DataDependentError,
    Exported,
    NotExportableError,
    Sizes,
    export,
    first_line,
)
from memplan.graph.infer import Inference
from memplan.graph.lower import lower
from memplan.graph.measure import MEMORY, Run, events_of
from memplan.graph.nest import Rebuild, flatten, unknown
from memplan.graph.numbers import NONE, Numbers
from memplan.graph.program import Program
from memplan.graph.reach import Attributes
from memplan.graph.standin import StandIn
from memplan.graph.weights import Weights, has_hooks, hook_of

if TYPE_CHECKING:
    from sympy import Expr


@dataclass(frozen=True)
class Target:
    """A captured module.

    path: of the module in the model, "" for the model itself. form: of the inputs that
    it was captured with. rebuild: makes the module's result of the program's outputs,
    with containers of its own. numbers: whose values it was exported with. constants,
    conditions, seconds: of the export, whose graph is not kept. outside: bytes of
    activations that are live outside the module while it runs. inference: knows the
    shapes of its operators. caches: of the model, which it had not filled.
    """

    path: str
    module: nn.Module
    constants: dict[str, Tensor]
    program: Program
    form: Form
    rebuild: Rebuild
    numbers: Numbers = NONE
    conditions: tuple[Expr, ...] = ()
    seconds: float = 0.0
    outside: int = 0
    inference: Inference = field(default_factory=Inference, repr=False, compare=False)
    caches: Caches | None = field(default=None, repr=False, compare=False)

    @property
    def weights(self) -> Weights:
        """The module's current parameters and buffers, and the tensors that its code
        made, by the names of the program's constants."""
        return Weights(self.module, self.constants)


Change = Callable[[Program, Inference], Program]


def as_lowered(program: Program, _: Inference) -> Program:
    """The program unchanged."""
    return program


def capture(
    module: nn.Module,
    inputs: Inputs,
    inference: Inference | None = None,
    change: Change = as_lowered,
    path: str = "",
    quick: bool = False,
) -> Target:
    """The module as a Program for inputs of this form: exported from a copy that shares
    its tensors, lowered and changed. Its outputs are the leaves of the module's result.

    quick: see `export`. Raises InputError if it cannot be exported or lowered.
    """
    check_modules(module, path)
    inference = inference or Inference()

    def target(numbers: Numbers) -> Target:
        exported, rebuild = exported_from(module, inputs, numbers, quick)
        program = change(lower(exported, inference), inference)
        given = path, module, exported.constants, program, Form.of(inputs), rebuild
        return Target(*given, numbers, seconds=exported.seconds, inference=inference)

    try:
        return target(NONE)
    except DataDependentError:
        numbers = Numbers.of(module)
        if not numbers.values:
            raise
        return target(numbers)


def check_modules(module: nn.Module, path: str = "") -> None:
    """Raise InputError if modules in it have hooks, those of a part itself apart, or
    run by memplan already."""
    for name, each in module.named_modules():
        if has_hooks(each) and (name or not path):  # they would run once, exported
            where = f" at {name}" if name else ""
            raise NotExportableError(f"its modules have hooks: {hook_of(each)}{where}")
        if isinstance(each, StandIn):
            where = name or "it"
            raise NotExportableError(f"{where} runs by memplan.{each.verb} already")


def exported_from(
    module: nn.Module,
    inputs: Inputs,
    numbers: Numbers = NONE,
    quick: bool = False,
    sizes: Sizes | None = None,
    seconds: float = EXPORT_SECONDS,
) -> tuple[Exported, Rebuild]:
    """An export of a copy of the module, with the module's own weights, and what makes
    its result of the graph's. See `export`."""
    copied, rebuilds = _copied(module), list[Rebuild]()
    for hooks in (copied._forward_hooks, copied._forward_pre_hooks):
        hooks.clear()  # a part's own run around what replaces it
    copied.forward = _flattened(copied, rebuilds, numbers)
    exported = export(copied, inputs.args, inputs.kwargs, seconds, quick, sizes)
    return _with_own_weights(exported, module), rebuilds[-1]


def _copied(module: nn.Module) -> nn.Module:
    """A copy of the modules and of all that they hold, with the same tensors."""
    shared = [*module.parameters(), *module.buffers(), *Attributes(module).atoms]
    try:
        copied: nn.Module = copy.deepcopy(module, {id(each): each for each in shared})
        return copied
    except Exception as error:
        raise NotExportableError(
            f"its modules cannot be copied: {first_line(error)}"
        ) from error


def _flattened(
    module: nn.Module, rebuilds: list[Rebuild], numbers: Numbers
) -> Callable[..., object]:
    """A forward that returns the leaves of the result, and notes how to rebuild it."""
    forward = module.forward

    @functools.wraps(forward)
    def flat(*args: object, **kwargs: object) -> object:
        with numbers.inlined(module):
            leaves, rebuild = flatten(forward(*args, **kwargs))
        if reason := unknown(leaves):
            raise NotExportableError(reason)
        rebuilds.append(rebuild)
        return leaves

    return flat


def _with_own_weights(exported: Exported, module: nn.Module) -> Exported:
    """The export with the module's own tensors by their names, also those that its code
    reached in another way."""
    tensors = [*module.named_buffers(), *module.named_parameters()]
    own = {_place(each): name for name, each in tensors if each.numel()}
    found = {
        name: own.get(_place(each), name) for name, each in exported.constants.items()
    }
    signature = exported.signature
    for spec in signature.input_specs:
        if spec.target in found:
            spec.target = found[spec.target]
    left = {n: each for n, each in exported.constants.items() if found[n] == n}
    return replace(exported, constants=left)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@dataclass(frozen=True)
class Exports:
    """Modules that were captured; left_alone: path of each other module -> reason.

    changes: what the model changes as it runs.
    """

    targets: list[Target]
    left_alone: dict[str, str]
    inference: Inference = field(default_factory=Inference)
    changes: Changes = field(default_factory=Changes)


Capture = Callable[[nn.Module, Inputs, Inference, Change], Target]

FIRST = (
    "what it keeps at its first run alone may depend on its inputs; "
    "run the model once before"
)


def export_parts(
    model: nn.Module,
    inputs: Inputs,
    change: Change = as_lowered,
    whole: Capture = capture,
) -> Exports:
    """Capture `model`, or each submodule that can be if the whole cannot.

    whole: captures the whole, and refuses what `capture` does. A submodule that is
    called more than once counts by its first call. Raises InputError if the model fails
    on the inputs.
    """
    changes = changes_of(model, inputs, lambda: _run(model, inputs))
    exports = Exports([], {}, changes=changes)
    reason = _exported(exports, model, inputs, change, whole)
    if reason is None:
        return exports
    exports.left_alone[""] = reason
    _descend(exports, model, "", first_calls(model, inputs), change)
    levels = levels_at(model, inputs, [target.path for target in exports.targets])
    exports.targets[:] = [
        replace(each, outside=levels[each.path]) for each in exports.targets
    ]
    return exports


def _descend(
    exports: Exports,
    module: nn.Module,
    path: str,
    calls: dict[str, Inputs],
    change: Change,
) -> None:
    for name, child in [*module.named_children()]:  # a run may add some
        where = f"{path}.{name}" if path else name
        if where in calls:
            part = functools.partial(capture, path=where)
            reason = _exported(exports, child, calls[where], change, part)
            if reason is None:
                if not exports.targets[-1].program.ops:
                    exports.targets.pop()  # it hands on what it is given
                continue
            exports.left_alone[where] = reason
        _descend(exports, child, where, calls, change)


def _exported(
    exports: Exports,
    module: nn.Module,
    inputs: Inputs,
    change: Change,
    captured: Capture,
) -> str | None:
    """Add a captured module; return the reason if it cannot be."""
    changes, caches = exports.changes, exports.changes.caches
    changed = changes.modules.intersection(module.modules())
    if changed and caches is None:
        return NOTES if changed - changes.first else FIRST
    try:
        _check_effects(module, inputs)  # first: it takes much less time
        if caches is not None:
            caches.take()
        target = captured(module, inputs, exports.inference, change)
    except InputError as error:
        return str(error)
    exports.targets.append(replace(target, caches=caches))
    return None


def _check_effects(module: nn.Module, inputs: Inputs) -> None:
    """Raise InputError if running the module does more than give a result: a Program
    would lose that."""
    try:
        with torch.no_grad():
            without_effects(module, inputs, lambda: inputs.run(module))
    except SideEffectsError:
        raise
    except Exception as error:  # the user's code, outside the model's own call
        raise NotExportableError(f"it fails by itself: {first_line(error)}") from error


def first_calls(model: nn.Module, inputs: Inputs) -> dict[str, Inputs]:
    """The arguments of each submodule's first call.

    Raises InputError if the model fails on the inputs.
    """
    calls: dict[str, Inputs] = {}

    def note(path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if path not in calls:
            module = model.get_submodule(path)
            calls[path] = Signature().arranged(module, args, kwargs)

    modules = list(model.named_modules())
    made = tuple(f"{path}." for path, each in modules if isinstance(each, StandIn))
    paths = [
        path
        for path, module in modules
        if path
        and not isinstance(module, torch.jit.ScriptModule)  # takes no hooks
        and not path.startswith(made)  # stand-ins watch their modules' hooks
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
    passed = Attributes(model, inputs)

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
        passed.restore()
