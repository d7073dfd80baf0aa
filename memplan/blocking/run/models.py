"""The layers of a PyTorch model, as it runs them."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memplan.blocking.run.inventory import Inventory, ModelLayers, Reference
from memplan.blocking.run.operations import READ, may_multiply, read
from memplan.errors import EnvironmentUnfitError, InputError
from memplan.factory import UserFile, blaming, parse_spec

FLOPS_PER_MAC = 2  # torch counts an addition for each multiplication


def layers_of_model(spec: str) -> ModelLayers:
    """The layers that ``model.py:factory`` runs.

    The factory is called without arguments, and returns the model and its inputs, as a
    pair. The model runs once, without gradients.
    Raises UsageError or InputError where that fails, with the reason.
    """
    model, inputs = _made(spec)
    return layers_of(model, inputs, f"{spec}: the model")


def layers_of(
    model: Any, inputs: tuple[Any, ...], name: str = "the model"
) -> ModelLayers:
    """The layers that `model`, a torch.nn.Module, runs on `inputs`.

    Convolutions, matrix products, attention, recurrent layers and pooling, whether they
    come from modules or from functions. Operations that torch composes of others are
    taken apart, and transformer layers run without their fast path, which is one
    operation. What may multiply and is in no layer is in `left_out`. Raises InputError
    where the model, called `name`, fails.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = _Found()

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            if not isinstance(func, torch._ops.OpOverload):
                result = func(*args, **given)
                found.note_other(func, args, given, result)
                return result
            composed = func.namespace != "prim"
            if composed and func._overloadpacket.__name__ not in READ:
                with self:
                    result = func.decompose(*args, **given)
                if result is not NotImplemented:
                    return result
            result = func(*args, **given)
            found.note(func, args, given, result)
            return result

    failing = blaming(f"{name} failed on its inputs")
    with failing, torch.no_grad(), found.following(model), _plainly(), Watch():
        model(*inputs)
    return found.all()


class _Found:
    """What ran, in which module."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry
        self._module: list[str] = []
        self._inventory = Inventory()
        self._torchs = 0  # multiply-adds
        self._unknown: Counter[str] = Counter()

    @contextmanager
    def following(self, model: Any) -> Iterator[None]:
        """While this lasts, know which module of `model` is running."""
        hooks = []
        for name, module in model.named_modules():
            label = name or type(model).__name__

            def enter(*_: object, label: str = label) -> None:
                self._module.append(label)

            def leave(*_: object) -> None:
                self._module.pop()

            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One ATen operation, or one of others' own, that ran."""
        operation = str(func._overloadpacket.__name__)
        macs = self._by_torch(func._overloadpacket, args, kwargs, result)
        if operation not in READ or func.namespace != "aten":
            if macs is not None or may_multiply(func.namespace, operation):
                self._leave_out(f"{func.namespace}.{operation}", macs)
            return
        where = self._where(operation)
        try:
            reading = read(operation, args, kwargs, result)
        except InputError as error:
            self._inventory.leave_out(where, f"{operation}{error}", macs)
            return
        self._inventory.take(where, reading)
        if macs is None and reading.macs:
            self._unknown[operation] += reading.macs

    def note_other(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A call of higher order, whose parts are out of sight."""
        macs = self._by_torch(func, args, kwargs, result)
        self._leave_out(str(func), macs)

    def all(self) -> ModelLayers:
        """Everything noted so far."""
        reference = Reference(self._torchs, tuple(self._unknown.most_common()))
        return self._inventory.all(reference)

    def _by_torch(self, func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
        """Multiply-adds by torch's own formula; None if it has none, or none for these
        shapes: some assert that heads are alike."""
        formula = self._formulas.get(func)
        if formula is None:
            return None
        try:
            macs = int(formula(*args, **kwargs, out_val=result)) // FLOPS_PER_MAC
        except Exception:
            return None
        self._torchs += macs
        return macs

    def _leave_out(self, name: str, macs: int | None) -> None:
        reason = f"{name} is one operation, whose products are not known"
        self._inventory.leave_out(self._where(name), reason, macs)

    def _where(self, otherwise: str) -> str:
        return self._module[-1] if self._module else otherwise


@contextmanager
def _plainly() -> Iterator[None]:
    """While this lasts, torch composes transformer layers of operations, and compiles
    nothing."""
    import torch

    backend = torch.backends.mha
    before = backend.get_fastpath_enabled()
    with ExitStack() as after:
        after.callback(backend.set_fastpath_enabled, before)
        backend.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            after.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _made(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """The model and its inputs, from ``model.py:factory``."""
    file, name = parse_spec(spec)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentUnfitError(
            f"{spec} needs PyTorch: pip install 'memplan[torch]'"
        )
    made = UserFile(file).call(name)
    import torch

    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not isinstance(made[0], torch.nn.Module):
        raise InputError(f"{spec} must return a pair: the model, and its inputs")
    inputs = made[1] if isinstance(made[1], tuple) else (made[1],)
    return made[0], inputs
