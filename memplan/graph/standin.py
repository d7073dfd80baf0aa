"""A module in the place of a model: what was prepared answers calls, else the model."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from memplan.errors import InputError, UsageError
from memplan.graph.call import Inputs, Signature
from memplan.graph.locks import Lock
from memplan.graph.nest import flatten, objects_of, storages
from memplan.graph.weights import has_hooks

if TYPE_CHECKING:
    from memplan.graph.capture import Target

Run = Callable[[], object]
MODES = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
}
UNCHANGED = "the model runs unchanged"
# What a stand-in has in common with its model, so that either can add to it.
SHARED = (
    *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


class ModelsError(Exception):
    """What it was raised from is the model's own, which ran."""


class StandIn(nn.Module):  # type: ignore[misc]
    """A module that answers for `model`, whose current weights it uses.

    model: the original. Parameters, buffers, submodules, mode and `state_dict` are its
    own; so are attributes that the stand-in lacks. In training mode, while it is
    traced, or where the model has hooks, the model runs.
    """

    verb: ClassVar[str]  # for warnings
    _unpickled: ClassVar[set[str]] = {
        *("_lock", "_warned", "_signature", "_named"),
    }
    # Attributes of its own; others that are assigned are the model's.
    _own: ClassVar[set[str]] = {"model", *_unpickled}

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__["model"] = model
        for name in SHARED:
            self.__dict__[name] = getattr(model, name)
        self._reset()

    def _reset(self) -> None:
        """Make what is not copied and not pickled."""
        self._lock = Lock()
        self._warned: set[str] = set()
        self._signature = Signature()
        self._named: set[str] | None = None  # modes that the model's code asks for

    def target(self, inputs: Inputs) -> Target:
        """What runs for these inputs, as a Program whose steps are operators.

        Raises InputError where that is not known.
        """
        raise InputError(f"it runs by memplan.{self.verb} already")

    def budget(self) -> int | None:
        """Bytes of activations that a call may take; None if there is no limit."""
        return None

    def around(self, model: nn.Module) -> StandIn:
        """A stand-in of the same kind for another model."""
        raise InputError(f"it runs by memplan.{self.verb} already")

    def unsupported(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        """Why a call is not plain inference, so that the model itself runs; "" if it
        is."""
        if self.model.training:
            return "it is in training mode"
        hooked = has_hooks(self.model) or (
            isinstance(self.model, StandIn) and has_hooks(original(self.model))
        )
        return "it has hooks" if hooked else ""

    def _ready(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[object, Run] | None:
        """What computes the results of a call, and its key; None: the model does."""
        raise NotImplementedError

    def _give_up(self, key: object, error: Exception) -> None:
        """What `_ready` gave for this key failed."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments."""
        if is_traced((*args, *kwargs.values())):  # the model's place is the stand-in's
            return self.model.forward(*args, **kwargs)
        found = None
        if reason := self._other_mode():
            self._warn(reason)
        else:
            found = self._ready(args, kwargs)
        if found is None:
            return self.model(*args, **kwargs)
        key, run = found
        try:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    result = run()
            else:
                result = run()
        except ModelsError as error:
            assert error.__cause__ is not None
            raise error.__cause__ from None
        except Exception as error:
            result = self.model(*args, **kwargs)  # which may well raise, too
            self._give_up(key, error)
        return self._without_gradients(result, (*args, *kwargs.values()))

    def _other_mode(self) -> str:
        """Why the model may take another branch than it took when it was exported: it
        asks for a mode of torch, and that is on. "" if it may not."""
        for name, is_on in MODES.items():
            if is_on():
                if self._named is None:
                    from memplan.graph.reach import Attributes

                    self._named = MODES.keys() & Attributes(self.model).named
                if name in self._named:
                    return f"its code asks for torch.{name}(), which is true now"
        return ""

    def _without_gradients(self, result: object, inputs: Iterable[object]) -> object:
        """Results that raise where a gradient is asked of them, if the model's would
        have one."""
        if not torch.is_grad_enabled():
            return result
        anchor = next((p for p in self.model.parameters() if p.requires_grad), None)
        if anchor is None:
            return result
        return refuse_gradients(result, anchor, list(inputs), self.verb)

    def _warn(self, reason: str, what: str = UNCHANGED) -> None:
        """Warn once of `what`, and why."""
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(
                f"memplan.{self.verb}: {what}: {reason}",
                stacklevel=frames_to_caller(),
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model" or name.startswith("__"):
                raise
            return getattr(self.model, name)

    def _is_models(self, name: str) -> bool:
        """Whether an attribute that is assigned or deleted is the model's."""
        if "model" not in vars(self) or name in self._own or name in vars(self):
            return False
        return not hasattr(type(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_models(name):
            setattr(self.model, name, value)
        elif name in self._own:
            self.__dict__[name] = value  # the model may have a submodule of this name
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_models(name):
            delattr(self.model, name)
        else:
            super().__delattr__(name)

    def __len__(self) -> int:
        return len(self.model)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        return self.model[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.model)

    @property
    def training(self) -> bool:
        """The model's mode."""
        return bool(self.model.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "model" in vars(self):
            self.model.training = mode

    def train(self, mode: bool = True) -> StandIn:
        """Set the model's mode."""
        self.model.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state of the model's."""
        return self.model.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.model._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> StandIn:
        self.model._apply(*args, **kwargs)
        return self

    def _get_name(self) -> str:
        return f"{type(self).__name__}[{self.model._get_name()}]"

    def extra_repr(self) -> str:
        return str(self.model.extra_repr())

    def __copy__(self) -> StandIn:
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, object]:
        own = vars(self)
        return {name: own[name] for name in own if name not in self._unpickled}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._reset()


def original(model: nn.Module) -> nn.Module:
    """The model that stand-ins, one in the place of another, were made from."""
    while isinstance(model, StandIn):
        model = model.model
    return model


def all_hooked() -> str:
    """That hooks of all modules are registered; "" if none is."""
    hooks = torch.nn.modules.module
    any_is = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    return "all modules have hooks" if any_is else ""


def intercepted() -> str:
    """What sees or changes every operator of torch right now; "" for nothing."""
    if hooked := all_hooked():
        return hooked
    if torch._C._len_torch_dispatch_stack() or _has_function_modes():
        return "a mode intercepts torch's functions"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "its functions are transformed"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it takes forward derivatives"
    return ""


def _has_function_modes() -> bool:
    """Whether functions of torch are overridden, by more than a default device."""
    if not torch._C._len_torch_function_stack():
        return False
    stack = _get_current_function_mode_stack()
    return not all(isinstance(mode, DeviceContext) for mode in stack)


def is_traced(values: Iterable[object]) -> bool:
    """Whether a call with these arguments is being traced or compiled."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or any(isinstance(value, fx.Proxy) for value in values)
    )


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """Its result looks differentiable; asking it for a gradient raises UsageError."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, verb: str) -> Tensor:
        ctx.mark_dirty(value)  # and so no view, which could not be written to
        ctx.verb = verb
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise UsageError(
            f"memplan.{ctx.verb} runs a model's inference: its results have no "
            "gradients. Run under torch.no_grad(), or train the original model, which "
            "is at .model"
        )


def refuse_gradients(
    result: object, anchor: Tensor, inputs: list[object], verb: str
) -> object:
    """`result` with tensors that raise UsageError where a gradient is asked of them.

    anchor: a parameter that requires one. inputs: the call's. Tensors that lie in their
    memory, and objects that they hold, are returned as they are.
    """
    leaves, rebuild = flatten(result, objects_of(inputs))
    given = storages(inputs)
    replaced: dict[int, Tensor] = {}
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or id(leaf) in replaced:
            continue
        if leaf.requires_grad or leaf.untyped_storage().data_ptr() in given:
            continue
        if leaf.is_floating_point() or leaf.is_complex():
            replaced[id(leaf)] = _NoGradient.apply(anchor, _own(leaf), verb)
    return rebuild([replaced.get(id(leaf), leaf) for leaf in leaves])


def _own(tensor: Tensor) -> Tensor:
    """The same values in the same memory, but no view and no base of one: these could
    not be written to."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return tensor.new_empty(0).set_(tensor.untyped_storage(), *place)


def frames_to_caller() -> int:
    """How many frames a warning is away from the program's line that called the model:
    the first that is neither torch's nor memplan's."""
    folders = [os.path.dirname(file or "") for file in (torch.__file__, __file__)]
    own = (f"{folders[0]}{os.sep}", f"{os.path.dirname(folders[1])}{os.sep}")
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, count = frame.f_back, count + 1
    return count
